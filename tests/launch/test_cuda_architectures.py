"""Which lists of CMAKE_CUDA_ARCHITECTURES cmake/cuda.cmake accepts: no Hopper GPU may load code without wgmma."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def configure(architectures):
    command = ["cmake", "-DPITSTOP_CUDA=OFF", f"-DCMAKE_CUDA_ARCHITECTURES={architectures}", "-P", "cmake/cuda.cmake"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


@pytest.mark.parametrize("architectures", ["90", "80;90", "90a;90", "90a-real;90-real", "80", "90-virtual", "native"])
def test_a_list_with_code_that_a_hopper_gpu_loads_without_wgmma_is_refused_by_name(architectures):
    made = configure(architectures)
    assert made.returncode != 0
    said = " ".join(made.stderr.split())
    assert f"CMAKE_CUDA_ARCHITECTURES is '{architectures}'" in said and "Name 90a-real" in said, said


@pytest.mark.parametrize(
    "architectures", ["", "90a", "80-real", "80;90a", "80;90a-virtual", "80-real;90a-real;90-virtual", "100-real"]
)
def test_a_list_with_wgmma_or_without_a_hopper_gpu_is_accepted(architectures):
    made = configure(architectures)
    assert made.returncode == 0, made.stderr
