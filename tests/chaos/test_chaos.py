"""launch/chaos itself, in a short run: it verifies tokens, injects faults, and reports both in its last lines."""

import re
import subprocess
import sys

from chaos.weights import ROOT

# seconds: a run of 18 s, plus the trees' starts, the last requests and the records that wait for the
# oracle, on a busy machine.
RUN_S = 840


def run(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "launch" / "chaos", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )


def number(pattern, text):
    found = re.search(pattern, text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def test_a_short_run_verifies_tokens_injects_faults_and_is_clean():
    done = run("--seed", 1, "--minutes", 0.3)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert number(r"^(\d+) tokens verified", told) > 0, told
    assert number(r"^faults: (\d+)", told) > 0, told
    assert number(r"^updates that took effect: (\d+)", told) > 0, told
    assert told.rstrip().endswith("clean"), told


def test_an_unknown_option_is_refused():
    done = run("--sede", 1)
    assert done.returncode == 2 and "--sede" in done.stderr
