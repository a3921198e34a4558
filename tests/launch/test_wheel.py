"""The wheel, installed with Python alone: with Debian's, and with another minor version if one is on the path."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL_BYTES_MAX = 3e6  # compressed
OTHERS_BYTES_MAX = 20e6  # compressed; the worker is half of it, and the kernels for GPUs are most of the worker
PROGRAM = """
import pitstop
with pitstop.Engine("stories") as engine:
    out = engine.generate("Once upon a time", {"max_new_tokens": 40, "temperature": 0})
    print(out.text)
    print(out.spans[0].digest == engine.weight_digests().digest)
"""


def no_index(text):
    """Whether pip failed because it could reach no package index."""
    return re.search(r"No matching distribution|Could not fetch|ConnectionError|Temporary failure|Max retries", text)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    build = os.environ.get("PITSTOP_BUILD", str(ROOT / "build" / "cpu"))
    done = subprocess.run(
        [ROOT / "launch" / "wheel", "--prebuilt", build, place], capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0 and no_index(done.stderr):
        pytest.skip("no package index can be reached: scikit-build-core makes the wheel")
    assert done.returncode == 0, done.stderr
    (path,) = place.glob("pitstop-*.whl")
    return path


def interpreters():
    """Debian's Python, and one of another minor version: on the path, or pyenv's."""
    places = [shutil.which(f"python3.{minor}") for minor in range(14, 8, -1)]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
        places += sorted(map(str, pathlib.Path(root, "versions").glob("3.*/bin/python")), reverse=True)
    asks = "import sys, venv, ensurepip; print(sys.version_info >= (3, 9) and sys.version_info.minor)"
    for path in filter(None, places):
        asked = subprocess.run([path, "-c", asks], capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip() not in ("False", str(sys.version_info.minor)):
            return {"debian": "/usr/bin/python3", "another": path}
    return {"debian": "/usr/bin/python3"}


@pytest.fixture(scope="module", params=["debian", "another"])
def installed(request, wheel, tmp_path_factory):
    """The folder of programs of an environment that has the wheel and its requirements."""
    python = interpreters().get(request.param)
    if python is None:
        pytest.skip("no other minor version of Python is on the path")
    place = tmp_path_factory.mktemp(request.param) / "venv"
    subprocess.run([python, "-m", "venv", place], check=True, timeout=400)
    done = subprocess.run(
        [place / "bin" / "pip", "install", "-q", "--disable-pip-version-check", wheel],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0 and no_index(done.stderr):
        pytest.skip("no package index can be reached: pyzmq, msgpack and NumPy come from there")
    assert done.returncode == 0, done.stderr
    return place / "bin"


def call(command, **environment):
    return subprocess.run(
        list(map(str, command)), cwd="/", env=environment, capture_output=True, text=True, timeout=400
    )


def test_it_is_small(wheel):
    """The limits hold also for a wheel packed from a build with kernels for GPUs; launch/wheel itself builds none."""
    sizes = collections.Counter()
    for entry in zipfile.ZipFile(wheel).infolist():
        of_model = re.search(r"/models/([^/]+)/", entry.filename)
        sizes[of_model[1] if of_model else "others"] += entry.compress_size
    others = sizes.pop("others")
    assert others < OTHERS_BYTES_MAX
    assert set(sizes) == {path.name for path in (ROOT / "launch/models").iterdir() if path.is_dir()}
    assert max(sizes.values()) < MODEL_BYTES_MAX, sizes
    assert "-py3-none-manylinux_" in wheel.name


def test_the_command_generates_with_next_to_no_environment(installed):
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:  # a directory in which no other tree is registered
        command = [installed / "pitstop", "generate", "Once upon a time", "--temperature=0"]
        done = call(command, XDG_RUNTIME_DIR=runtime)
    assert done.returncode == 0, done.stderr
    assert "little girl named Lily" in done.stdout


def test_an_engine_starts_and_its_tokens_name_their_version(installed):
    done = call([installed / "python", "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    *text, agrees = done.stdout.splitlines()
    assert "little girl" in " ".join(text) and agrees == "True"
    assert done.stderr == ""


def test_every_library_is_its_own_or_glibcs(installed):
    of_glibc = ("ld-linux", "linux-vdso", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libresolv.")
    (tree,) = installed.parent.glob("lib/python*/site-packages/pitstop/_tree")
    for path in (tree / "bin").iterdir():
        done = subprocess.run(["ldd", path], env={}, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            name = line.split()[0].rsplit("/", 1)[-1]
            assert name.startswith(of_glibc) or str(tree.resolve()) in line or "_tree" in line, f"{path.name}: {line}"


def test_a_build_without_programs_makes_no_wheel(tmp_path):
    done = subprocess.run(
        [ROOT / "launch" / "wheel", "--prebuilt", tmp_path, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if no_index(done.stderr):
        pytest.skip("no package index can be reached: scikit-build-core makes the wheel")
    assert done.returncode != 0 and "is not built" in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_a_machine_without_the_tests_packages_makes_one(tmp_path):
    """launch/quickstart installs the packages whose reason does not begin with "tests:"; the wheel
    needs no more.
    """
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "launch", checkout / "launch", ignore=shutil.ignore_patterns("models", "__pycache__"))
    without = tmp_path / "without"
    without.mkdir()
    for name in ("pytest", "xdist", "zmq", "msgpack"):
        (without / f"{name}.py").write_text("raise ImportError('not installed')")
    done = subprocess.run(
        [checkout / "launch" / "wheel", "--prebuilt", tmp_path],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(without)},
    )
    assert "test environment" not in done.stderr, done.stderr
    assert "packing the wheel: half a minute" in done.stderr, "nobody waits in silence"
    assert "pyproject.toml" in done.stderr and "the wheel could not be made" in done.stderr, "pip was asked"
    told = subprocess.run(
        ["bash", "-c", f"source {checkout}/launch/lib/setup.sh; packages"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "python3-venv" in told
