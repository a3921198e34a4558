"""The calls of docs/http_examples.md, in their order on one tree, give the answers that the page shows."""

import json
import re
import shlex
import subprocess

import pytest

from http_client import program
from lora_files import exact_adapter, write_adapter
from process_tree import ROOT, ProcessTree

PAGE = ROOT / "docs" / "http_examples.md"
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
ADAPTER = "/path/to/adapter"
NAMED = re.compile(r"localhost:30000(/\S*)")


def examples():
    """(the command, the answer that the page shows) of each call."""
    lines = "".join(BLOCK.findall(PAGE.read_text())).splitlines()
    assert all(line.startswith("# ") for line in lines[1::2]), "each command has one line, and one line is its answer"
    return list(zip(lines[::2], (line[2:] for line in lines[1::2])))


def routes():
    printed = subprocess.run([program("http_proc"), "--routes"], capture_output=True, text=True, check=True).stdout
    return [line.split("\t")[:2] for line in printed.splitlines()]


def is_like(shown, answer):
    """Whether the answer has all that the page shows of it."""
    if isinstance(shown, dict):
        return isinstance(answer, dict) and all(name in answer and is_like(shown[name], answer[name]) for name in shown)
    if isinstance(shown, list):
        return isinstance(answer, list) and len(shown) == len(answer) and all(map(is_like, shown, answer))
    if isinstance(shown, str) and "..." in shown:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), text, re.DOTALL) is not None
    return type(shown) is type(answer) and shown == answer


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def problem_of(shown, status, body):
    """The difference between the server's answer and the one that the page shows; empty if they agree."""
    begin = re.match(r"(\d{3})(?: |$)", shown)
    want = int(begin[1]) if begin else 200
    if status != want:
        return f"{status}, not {want}: {body}"
    rest = shown[begin.end() :] if begin else shown
    if not (body == "" if not rest else is_like(parsed(rest), parsed(body)) or is_like(rest, body)):
        return f"not as shown: {body}"
    return ""


@pytest.mark.parametrize(
    "shown, status, body",
    (
        ('{"a": 1}', 200, '{"a": 2}'),
        ('{"a": 1}', 200, '{"a": true}'),
        ('{"a": 1}', 200, '{"b": 1}'),
        ('{"a": []}', 200, '{"a": [1]}'),
        ('{"a": "x..."}', 200, '{"a": "yx"}'),
        ('{"a": 1}', 400, '{"a": 1}'),
        ('400 {"a": 1}', 200, '{"a": 1}'),
        ("200", 200, "text"),
        ("null", 200, "{}"),
    ),
)
def test_another_answer_than_the_page_shows_is_seen(shown, status, body):
    assert problem_of(shown, status, body)


def test_every_route_has_a_call():
    called = {NAMED.search(command)[1] for command, _ in examples()}
    pages = [path for _, path in routes() if not path.endswith("*")]
    assert len(pages) > 80 and sorted(set(pages) - called) == []


def test_the_answers_are_those_of_the_page(place, tmp_path):
    adapter = write_adapter(tmp_path / "adapter", exact_adapter(1)[0])
    tree = ProcessTree(place / "tree", "--port", 0)
    wrong = []
    try:
        for command, shown in examples():
            words = [word.replace(ADAPTER, str(adapter)) for word in shlex.split(command)]
            assert words[0] == "curl", command
            words[1] = words[1].replace("localhost:30000", tree.url.removeprefix("http://"))
            done = subprocess.run(
                [*words, "--silent", "--write-out", "\n%{http_code}"], capture_output=True, text=True, timeout=120
            )
            body, _, status = done.stdout.rpartition("\n")
            if problem := problem_of(shown.replace(ADAPTER, str(adapter)), int(status), body):
                wrong.append(f"{command}\n  shown: {shown}\n  {problem}")
        assert tree.launcher.wait(30) == 0  # its last call was /shutdown
    finally:
        tree.abandon()
    assert not wrong, "\n".join(wrong)
