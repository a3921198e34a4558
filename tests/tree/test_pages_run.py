"""Every command block of README.md and of the first page of docs/ runs in order, in an empty
directory, as a reader would run it.
"""

import json
import re
import socket
import subprocess
import sys

import pytest

from process_tree import HOME, ROOT, environment

PAGES = ("README.md", "docs/first_steps.md")
BLOCK = re.compile(r"(?:<!-- (not run|needs): ([^\n]*) -->\n)?```(sh|python)\n(.*?)```", re.DOTALL)


def blocks(page, kind):
    """(why it is not run, its requirements, its text) of each block of that kind."""
    found = []
    for mark, words, language, text in BLOCK.findall((ROOT / page).read_text()):
        if language == kind:
            found.append((words if mark == "not run" else "", words.split(", ") if mark == "needs" else [], text))
    return found


@pytest.fixture
def reader(place, monkeypatch):
    """reader(command): runs it in a directory that has the checkout's folders and nothing else."""
    (place / "home").mkdir(mode=0o700)
    monkeypatch.setenv(HOME, str(place / "home"))
    here = place / "reader"
    here.mkdir()
    for folder in ("launch", "client"):
        (here / folder).symlink_to(ROOT / folder)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
    env = {**environment(), "PYTHONPATH": str(here / "client" / "python"), "PYTHONWARNINGS": "error::UserWarning"}

    def run(*command):
        return subprocess.run(
            [each.replace("30000", port) for each in command],
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
        )

    yield run
    run("launch/pitstop", "shutdown")


def lines(text):
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES)
def test_the_command_blocks_of_a_page_run_in_order(page, reader):
    told = [text for why, _, text in blocks(page, "sh") if not why]
    assert sum(len(lines(text)) for text in told) >= 8
    done = reader("bash", "-euo", "pipefail", "-x", "-c", "\n".join(told))
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"text":' in done.stdout, "curl's answer"
    assert "stories" in done.stdout and "serving: " in done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_only_blocks_that_install_or_build_are_not_run(page):
    for why, _, text in blocks(page, "sh"):
        if why:
            assert "minutes" in why, f"{why}: {text}"
            names = {re.split(r"[ &]", line)[0] for line in lines(text)}
            assert names <= {"launch/quickstart", "launch/wheel", "launch/fleet", "python3", "pip"}, names
            assert all((ROOT / name).is_file() for name in names if "/" in name)


def test_programs_that_the_pages_call_are_among_the_packages_that_are_installed():
    listed = (ROOT / "launch" / "dependencies.txt").read_text()
    packages = [line.split("#")[0].strip() for line in listed.splitlines() if "# tests:" not in line]
    assert any("curl " in text for page in PAGES for _, _, text in blocks(page, "sh")) and "curl" in packages
    assert any("-m venv" in text for page in PAGES for _, _, text in blocks(page, "sh")) and "python3-venv" in packages


def test_quickstart_builds_what_the_wheel_packs():
    """After it, each page's `launch/wheel --prebuilt` packs exactly this build."""
    listed = re.search(r"PITSTOP_PROGRAMS\n(.*?)\)", (ROOT / "cmake/programs.cmake").read_text(), re.DOTALL)[1].split()
    packed = {name.removeprefix("pitstop_").removesuffix("_main") for name in listed}
    built = re.search(r"bin/pitstop_\{(.*?)\}", (ROOT / "launch/quickstart").read_text())[1].split(",")
    assert packed == set(built)
    for page in PAGES:
        assert "\nlaunch/wheel --prebuilt build/cpu" in (ROOT / page).read_text()


@pytest.mark.parametrize("number", range(2))
def test_the_programs_of_the_first_page_run(number, reader):
    _, needs, text = blocks("docs/first_steps.md", "python")[number]
    for name in needs:
        pytest.importorskip(name, reason=f"{name} is not installed")
    done = reader(sys.executable, "-c", text)
    assert done.returncode == 0, done.stderr
    assert "step 1" in done.stdout


def shape(value):
    """The keys of an answer, and the keys of its members."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__.replace("int", "float")


def test_the_first_answers_of_the_http_page_are_what_comes(reader):
    """Five calls of curl, each with its answer below: their fields are compared, as values differ."""
    page = (ROOT / "docs" / "http.md").read_text().partition("## Routes")[0]
    calls = re.findall(r"```sh\n(curl.*?)```\n\n```json\n(.*?)```", page, re.DOTALL)
    assert len(calls) == 5
    start = "launch/pitstop serve --port 30000 > log 2>&1 & until curl -sf localhost:30000/health; do sleep 0.2; done"
    assert reader("bash", "-c", start).returncode == 0
    for call, answer in calls:
        done = reader("bash", "-c", call)
        assert done.returncode == 0, done.stderr
        assert shape(json.loads(done.stdout)) == shape(json.loads(answer)), f"{call}\n{done.stdout}"
