"""cmake --install and the Debian packages: a project outside this tree is built against them, and talks to their tree."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PITSTOP_BUILD", ROOT / "build" / "cpu")).resolve()
PROMPT = "Once upon a time"
CMAKE_LISTS = """cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
find_package(pitstop 0.1 REQUIRED)
add_executable(front_end front_end.cpp)
target_link_libraries(front_end PRIVATE pitstop::client)
file(WRITE ${CMAKE_BINARY_DIR}/tree_dir "${PITSTOP_TREE_DIR}")
"""


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Both components, installed and then moved: nothing may depend on the first place."""
    first = tmp_path_factory.mktemp("first") / "usr"
    for component in ("runtime", "development"):
        run("cmake", "--install", BUILD, "--prefix", first, "--component", component)
    place = tmp_path_factory.mktemp("moved") / "pitstop"
    first.rename(place)
    return place


@pytest.fixture(scope="module")
def run_dir(prefix):
    """The run directory of a tree that the installed launcher has started, without this build's environment variables."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="pitstop-test-", dir="/tmp"))
    tree = subprocess.Popen(
        [prefix / "bin" / "pitstop", "serve", "--no-http", f"--run-dir={place / 'tree'}"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    try:
        assert "is ready" in tree.stdout.readline()
        yield place / "tree"
    finally:
        tree.terminate()
        tree.communicate(timeout=60)
        shutil.rmtree(place)
    assert tree.returncode == 0


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The README's front end, and nothing else of this project."""
    text = (ROOT / "README.md").read_text()
    code = re.search(r"<!-- example: front_end.cpp -->\n```\w+\n(.*?)```", text, re.DOTALL).group(1)
    place = tmp_path_factory.mktemp("outside")
    (place / "front_end.cpp").write_text(code)
    (place / "CMakeLists.txt").write_text(CMAKE_LISTS)
    return place


def tells_the_story(front_end, run_dir):
    said = run(front_end, run_dir, PROMPT)
    assert len(said.split()) > 20
    return said


def test_find_package_gives_the_client(prefix, source, run_dir):
    build = source / "build"
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    tells_the_story(build / "front_end", run_dir)
    tree_dir = pathlib.Path((build / "tree_dir").read_text())
    assert (tree_dir / "bin" / "pitstop_tp_worker").exists() and (tree_dir / "launch" / "pitstop").exists()


def test_pkg_config_gives_the_client(prefix, source, run_dir):
    """The command is the README's."""
    (command,) = re.findall(r"^g\+\+ .*", (ROOT / "README.md").read_text(), re.MULTILINE)
    command = command.replace("g++", os.environ.get("CXX", "c++"), 1).replace("-o front_end", "-o by_pkg_config")
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    run("bash", "-euc", f"cd {source} && {command}", env=env)
    tells_the_story(source / "by_pkg_config", run_dir)


def test_every_public_header_is_there(prefix):
    for folder in ("base", "bus", "client", "digest", "messages"):
        installed = {path.name for path in (prefix / "include" / "pitstop" / folder).iterdir()}
        includes = set()
        for path in (prefix / "include" / "pitstop").rglob("*.h"):
            includes |= set(re.findall(rf'#include "{folder}/([\w.]+)"', path.read_text()))
        assert includes <= installed, includes - installed


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if shutil.which("dpkg-shlibdeps") is None:
        pytest.skip("dpkg-shlibdeps, which names the libraries' packages, is not installed")
    place = tmp_path_factory.mktemp("packages")
    run("cpack", "-G", "DEB", "-B", place, cwd=BUILD)
    return {path.name.split("_")[0]: path for path in place.glob("*.deb")}


def test_the_packages_say_what_they_need(packages):
    assert set(packages) == {"pitstop", "python3-pitstop", "libpitstop-dev"}
    needs = {name: run("dpkg-deb", "-f", path, "Depends") for name, path in packages.items()}
    assert "libzmq5" in needs["pitstop"] and "python3 (>= 3.9)" in needs["pitstop"]
    assert "python3-zmq" in needs["python3-pitstop"] and "cppzmq-dev" in needs["libpitstop-dev"]


def test_they_run_from_a_clean_root(packages, tmp_path):
    """dpkg installs the packages into an empty root; this machine provides their dependencies."""
    root = tmp_path / "root"
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    run(
        "dpkg",
        f"--root={root}",
        "--force-not-root",
        "--force-depends",
        "--force-script-chrootless",
        "--log=/dev/null",
        "-i",
        packages["pitstop"],
        packages["python3-pitstop"],
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:  # a directory in which no other tree is registered
        own = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": runtime}
        said = run(root / "usr/bin/pitstop", "generate", PROMPT, "--temperature=0", "--max-new-tokens=20", env=own)
    assert "little girl named Lily" in said
    assert re.fullmatch(r"pitstop \d+\.\d+\.\d+\n", run(root / "usr/bin/pitstop", "--version", env=own))
    program = "import pitstop\nwith pitstop.Engine() as engine: print(engine.generate('A', {'max_new_tokens': 3}).finish.reason)"
    environment = {"PATH": f"{root}/usr/bin:/usr/bin:/bin", "PYTHONPATH": f"{root}/usr/lib/python3/dist-packages"}
    assert run(sys.executable, "-c", program, env=environment).strip() == "length"
