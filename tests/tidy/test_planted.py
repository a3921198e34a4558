"""The bugs that are planted at night still fit the sources."""

import subprocess
import sys

import pytest

from project import ROOT


@pytest.mark.parametrize("driver", ["tests/emulated_gpu/mutations.py", "tests/sim/update_mutations.py"])
def test_every_planted_bug_fits_its_file(driver):
    done = subprocess.run([sys.executable, ROOT / driver, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
