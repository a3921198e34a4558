"""A bundle, unpacked elsewhere, without this machine's environment variables."""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPRESSED_BYTES_MAX = 44 << 20  # without the CUDA libraries: the sources use the rest of a transfer's limit
PYTHON = "/usr/bin/python3"
OTHERS = [f"{folder}/bin/python3" for folder in sorted(glob.glob("/root/.pyenv/versions/3.1*")) if "3.11" not in folder]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Made in one place, packed, unpacked in another; the first is removed."""
    made = tmp_path_factory.mktemp("made") / "pitstop"
    build = os.environ.get("PITSTOP_BUILD", str(ROOT / "build" / "cpu"))
    has_gpu_tests = os.path.exists(f"{build}/bin/kernels_gpu_test")
    done = subprocess.run(
        [ROOT / "launch" / "bundle", made, "--archive", *([] if has_gpu_tests else ["--without-gpu"])],
        env={**os.environ, "PITSTOP_BUILD": build},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    archive = made.with_name("pitstop.tar.xz")
    assert archive.stat().st_size < COMPRESSED_BYTES_MAX
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with tarfile.open(archive) as file:
        file.extractall(elsewhere)
    made.rename(made.with_name("gone"))
    return elsewhere / "pitstop"


def call(bundle, *command, **environment):
    return subprocess.run(
        [PYTHON, *map(str, command)],
        cwd=bundle,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )


def test_every_library_is_its_own_or_glibcs(bundle):
    of_glibc = ("ld-linux", "linux-vdso", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libresolv.")
    for path in [*(bundle / "bin").iterdir(), *(bundle / "lib").iterdir()]:
        done = subprocess.run(["ldd", path], env={}, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            name = line.split()[0].rsplit("/", 1)[-1]
            assert name.startswith(of_glibc) or str(bundle) in line, f"{path.name}: {line}"


def test_generates_with_an_empty_environment(bundle):
    done = call(bundle, "launch/pitstop", "generate", "Once upon a time", "--temperature=0")
    assert done.returncode == 0, done.stderr
    assert "little girl named Lily" in done.stdout


def test_brings_the_python_client(bundle):
    done = call(bundle, "-c", "import pitstop; pitstop.Client", PYTHONPATH="client/python")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("python", OTHERS)
def test_the_client_is_for_every_python(bundle, python):
    """The bundle has wheels for each Python version: a machine with a GPU may have another version, and no network."""
    if not (ROOT / "build" / "wheels").exists():
        pytest.skip("no wheels could be fetched: the packages are this machine's Python's")
    ask = "import msgpack, pitstop, zmq; pitstop.Client; print(zmq.zmq_version(), msgpack.Packer)"
    done = subprocess.run(
        [python, "-c", ask], env={"PYTHONPATH": str(bundle / "client/python")}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "_cmsgpack" in done.stdout, "the fast one"


def test_its_benchmarks_start_its_own_tree(bundle, tmp_path):
    """The bundled programs name the commit that they were built from, not that of the sources."""
    path = tmp_path / "figures.json"
    command = ["offline", "--num-requests=1", "--prompt-len=4", "--output-len=4", f"--json={path}"]
    done = subprocess.run(
        [bundle / "bin" / "pitstop_bench", *command],
        cwd=bundle,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text())["commit"] == (bundle / "COMMIT").read_text().strip()


def test_packs_all_of_it_or_nothing(tmp_path):
    """Programs copied by hand, and only some of them: the error names the missing ones, and no bundle is left behind."""
    (tmp_path / "bin").mkdir()
    for name in ("pitstop_tp_worker", "pitstop_cli"):
        (tmp_path / "bin" / name).write_text("")
    done = subprocess.run(
        [ROOT / "launch" / "bundle", tmp_path / "out"],
        env={**os.environ, "PITSTOP_BUILD": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4, done.stderr
    assert "pitstop_scheduler_proc" in done.stderr and "kernels_gpu_test" in done.stderr
    assert "pitstop_cli" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def hollow(tmp_path):
    """A build in which every program exists and does nothing."""
    place = tmp_path / "build" / "bin"
    place.mkdir(parents=True)
    text = (ROOT / "launch" / "bundle").read_text()
    for name in (
        "pitstop_cli",
        "pitstop_scheduler_proc",
        "pitstop_detokenizer_proc",
        "pitstop_http_proc",
        "pitstop_tokenizer_proc",
        "pitstop_tp_worker",
        "pitstop_bench",
        "pitstop_kernels_bench",
        "pitstop_make_model",
        "pitstop_roofline",
        "pitstop_stall",
        "pitstop_http_bench",
    ):
        assert name.removeprefix("pitstop_") in text
        shutil.copy("/bin/true", place / name)
    return place.parent


def bundle_of(build, out, **environment):
    return subprocess.run(
        [ROOT / "launch" / "bundle", out, "--without-gpu"],
        env={**os.environ, "PITSTOP_BUILD": str(build), **environment},
        capture_output=True,
        text=True,
    )


def test_what_fails_in_the_middle_leaves_nothing(hollow, tmp_path):
    """A failure leaves nothing behind, so that the next call can make the bundle in the same place."""
    tool = tmp_path / "path" / "patchelf"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'no such section' >&2; exit 1\n")
    tool.chmod(0o755)
    done = bundle_of(hollow, tmp_path / "out", PATH=f"{tool.parent}:{os.environ['PATH']}")
    assert done.returncode == 4 and "no such section" in done.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    done = bundle_of(hollow, tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_a_build_that_fails_says_why(hollow, tmp_path):
    """ninja writes the compiler's messages to standard output, and so does the failing build here."""
    cmake = tmp_path / "path" / "cmake"
    cmake.parent.mkdir()
    targets = (
        "pitstop_cli pitstop_scheduler_proc pitstop_detokenizer_proc pitstop_http_proc_main "
        "pitstop_tokenizer_proc_main pitstop_tp_worker_main pitstop_bench pitstop_kernels_bench pitstop_make_model "
        "pitstop_roofline pitstop_stall pitstop_http_bench"
    )
    listed = "".join(f"echo {target}: phony; " for target in targets.split())
    cmake.write_text(
        f"#!/bin/sh\ncase $* in *help) {listed};; *) echo 'cli.cpp:3: error: no such type'; exit 1;; esac\n"
    )
    cmake.chmod(0o755)
    (hollow / "CMakeCache.txt").write_text("")
    done = bundle_of(hollow, tmp_path / "out", PATH=f"{cmake.parent}:{os.environ['PATH']}")
    assert done.returncode == 4 and "cli.cpp:3: error: no such type" in done.stderr


def test_refuses_a_directory_that_holds_something(tmp_path):
    (tmp_path / "mine").write_text("kept")
    done = subprocess.run([ROOT / "launch" / "bundle", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert "not an empty directory" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_gpu_tests_say_that_there_is_no_gpu(bundle, tmp_path):
    """With a GPU they would run for minutes: tests/gpu/run is for that."""
    device = call(bundle, "-c", "import os; print(os.path.exists('/dev/nvidia0'))")
    if device.stdout.strip() == "True":
        pytest.skip("this machine has a GPU")
    done = call(bundle, "tests/gpu/run", f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["status"] == "not run"
    assert report["parts"] and all(part["status"] == "skipped" and part["why"] for part in report["parts"].values())
    assert (tmp_path / "report.md").read_text().startswith("# GPU report: NOT RUN: ")
    assert done.stdout.startswith("NOT RUN: ")
    assert call(bundle, "tests/gpu/run", "--require-gpu", f"--out={tmp_path}").returncode == 1


def test_cuda_without_a_gpu_is_an_error_at_the_start(bundle):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    done = call(bundle, "launch/pitstop", "serve", "--device=cuda", "--no-http")
    assert done.returncode == 3
    assert "CUDA" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_auto_without_a_gpu_takes_the_cpu_and_says_so(bundle):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    done = call(bundle, "launch/pitstop", "generate", "Once", "--log-level=info", "--max-new-tokens=2")
    assert done.returncode == 0, done.stderr
    assert "--device auto took cpu" in done.stderr
