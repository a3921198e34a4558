"""The commands of launch/pitstop, as a user types them."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from process_tree import LAUNCHER, ROOT, environment, run
from wire import SAMPLING

# Reads the launcher's value in a separate process, because the launcher's modules have common names.
MOST = json.loads(
    subprocess.check_output(
        [sys.executable, "-c", "import tree_flags, json; print(json.dumps(tree_flags.MOST))"],
        cwd=ROOT / "launch" / "lib",
    )
)
STORIES = ROOT / "launch" / "models" / "stories"
# The sampling parameters that no flag of the client expresses: lists of ids, and switches that are on by default.
LISTS_AND_TRUE = {
    "allowed_token_ids",
    "bad_tokens",
    "logit_bias",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
}


def test_ready_is_one_line_with_the_model_and_the_place(shared_tree):
    assert shared_tree.ready_line.startswith("pitstop: stories is ready after ")
    assert shared_tree.ready_line.endswith(f"run directory {shared_tree.run_dir}\n")
    assert shared_tree.log() == ""


def test_the_run_directory_is_private(shared_tree):
    assert shared_tree.run_dir.stat().st_mode & 0o777 == 0o700


def test_a_worker_yields_to_the_processes_around_it(shared_tree):
    (worker,) = shared_tree.pids("tp_worker")
    (scheduler,) = shared_tree.pids("scheduler_proc")
    usual = os.getpriority(os.PRIO_PROCESS, scheduler)
    assert os.getpriority(os.PRIO_PROCESS, worker) == min(usual + 5, 19)
    if not pathlib.Path("/proc/self/autogroup").exists():
        return  # no sessions that share cores
    session, usual = (
        int(pathlib.Path(f"/proc/{pid}/autogroup").read_text().split()[-1]) for pid in (worker, scheduler)
    )
    assert session > usual


def test_generate_streams_from_a_running_tree(shared_tree, reference):
    case = reference["stories"]["greedy"][2]
    client = subprocess.Popen(
        [
            LAUNCHER,
            "generate",
            "--run-dir",
            shared_tree.run_dir,
            "--temperature",
            "0",
            "--max-new-tokens",
            "400",
            "--ignore-eos",
            case["prompt"],
        ],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    first = client.stdout.read1()
    rest = client.stdout.read()
    assert client.wait() == 0
    assert len(first) < len(rest), "text comes as it is made"
    assert len((first + rest).decode()) > 800


def test_generate_without_a_tree_starts_one_for_the_call(place, reference):
    case = reference["stories"]["greedy"][0]
    ended = subprocess.run(
        [LAUNCHER, "generate", "--compute", "fp32", "--temperature", "0", "--max-new-tokens", "20", case["prompt"]],
        capture_output=True,
        text=True,
        env={**environment(), "XDG_RUNTIME_DIR": str(place)},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.rstrip("\n") in case["text"]
    assert len(ended.stdout) > 40
    assert ended.stderr == ""
    assert list((place / "pitstop").glob("[!.]*")) == []


def test_generate_says_what_is_wrong_in_one_line(shared_tree):
    for flags, expected in ((["--top-p", "2"], "top_p"), (["--temperature", "x"], "temperature")):
        ended = run("generate", "--run-dir", shared_tree.run_dir, *flags, "Once")
        assert ended.returncode in (1, 2)
        assert expected in ended.stderr
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
        assert ended.stdout == ""


def flags_in(text):
    return set(re.findall(r"^  (?:-h, )?--([\w-]+)", text, re.MULTILINE))


def test_generate_has_every_flag_of_the_client():
    client = flags_in(
        subprocess.check_output([f"{environment()['PITSTOP_BUILD']}/bin/pitstop_cli", "generate", "--help"], text=True)
    )
    assert {name.replace("_", "-") for name in SAMPLING - LISTS_AND_TRUE} <= client
    told = run("generate", "--help").stdout
    assert client <= flags_in(told)
    assert run("help", "generate").stdout == told


def test_generate_passes_the_flags_of_the_client_on(shared_tree):
    place = ["--run-dir", shared_tree.run_dir, "--temperature", "0", "--timeout-s", "60"]
    grammar = run("generate", *place, "--regex", "[xyz]{4}", "Once")
    assert grammar.returncode == 0, grammar.stderr
    assert re.fullmatch("[xyz]{4}\n", grammar.stdout)
    plain = run("generate", *place, "--max-new-tokens=8", "--max-new-tokens", "4", "--json", "--no-stream", "Once")
    (chunk,) = [json.loads(line) for line in plain.stdout.splitlines()]
    assert len(chunk["tokens"]) == 4
    stopped = run("generate", *place, "--stop", " the", "--stop=zebra", "--stop", " a", "Once upon")
    assert stopped.returncode == 0 and " a" not in stopped.stdout and " the" not in stopped.stdout


def test_generate_refuses_an_unknown_flag():
    ended = run("generate", "Once", "--regexp", "a")
    assert ended.returncode == 2
    assert ended.stderr == "pitstop: unrecognized arguments: --regexp a (--help lists the flags)\n"


def test_status_shows_the_tree(shared_tree):
    ended = run("status", "--run-dir", shared_tree.run_dir)
    assert ended.returncode == 0, ended.stderr
    assert "stories" in ended.stdout
    facts = json.loads(run("status", "--json", "--run-dir", shared_tree.run_dir).stdout)
    assert facts["model"] == "stories"
    assert len(facts["replicas"]) == 1


def test_commands_say_that_there_is_no_tree(place):
    ended = run("status", "--run-dir", place)
    assert ended.returncode == 4
    assert ended.stderr == f"pitstop: no tree runs in {place}\n"


def test_tokenize_reads_and_writes_json_lines(reference):
    case = reference["stories"]["greedy"][4]
    lines = [{"text": case["prompt"]}, {"ids": case["ids"]}, {"text": ""}, {"text": "Straße 終"}]
    ended = run("tokenize", "--tokenizer", STORIES, input="".join(json.dumps(x) + "\n" for x in lines))
    assert ended.returncode == 0, ended.stderr
    encoded, decoded, empty, other = map(json.loads, ended.stdout.splitlines())
    assert encoded == {"ids": case["ids"], "text": case["prompt"]}
    assert decoded["text"] == case["prompt"]
    assert empty["ids"] == []
    assert other["text"] == "Straße 終"


@pytest.mark.parametrize(
    "flags",
    [
        ["--tp", "0"],
        ["--tp", "4", "--ep", "3"],
        ["--dp", "-1"],
        ["--page-size", "many"],
        ["--compute", "fp8"],
        ["--expert-weights", "fp8"],
        ["--wings", "2"],
        ["--log-level", "loud"],
        ["--start-timeout", "nan"],
    ],
    ids=" ".join,
)
def test_a_bad_flag_is_one_line(flags):
    ended = run("serve", *flags)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert flags[0] in ended.stderr


@pytest.mark.parametrize("flag", MOST)
def test_an_absurd_number_is_refused_at_once_in_one_line(flag):
    most = MOST[flag]
    for number in (most + 1, 10**30, -1):
        ended = run("serve", flag, number)
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert line == (
            f"pitstop serve: argument {flag}: takes a whole number from 1 to {most}, not '{number}'"
            " (--help lists the flags)"
        )


# The launcher and the process report the same limit.
@pytest.mark.parametrize(
    "program, flag",
    [
        ("tokenizer_proc", "--dp"),
        ("scheduler_proc", "--page-size"),
        ("scheduler_proc", "--chunked-prefill-size"),
        ("scheduler_proc", "--max-running-requests"),
        ("scheduler_proc", "--max-queued-requests"),
        ("scheduler_proc", "--max-adapters"),
        ("scheduler_proc", "--state-checkpoint-tokens"),
        ("tp_worker", "--max-adapter-rank"),
        ("tp_worker", "--state-checkpoints"),
        ("tp_worker", "--tp"),
        ("tp_worker", "--threads"),
    ],
)
def test_the_launcher_and_the_process_have_one_limit(program, flag):
    most = MOST[flag]
    needed = ["--run-dir=/nowhere", f"--model={STORIES}"] if program == "tp_worker" else []

    def said(number):
        return subprocess.run(
            [f"{environment()['PITSTOP_BUILD']}/bin/pitstop_{program}", *needed, f"{flag}={number}"],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(),
        ).stderr

    assert flag in said(most + 1) and re.search(rf"\b{most}\b", said(most + 1))
    assert flag not in said(most), "it goes on to the next problem: it has no run directory"


@pytest.mark.parametrize("mode", [0o755, 0o710])
def test_a_run_directory_that_others_can_enter_is_refused(place, mode):
    (place / "open").mkdir()
    (place / "open").chmod(mode)
    ended = run("serve", "--run-dir", place / "open")
    assert ended.returncode == 4
    assert "closed to others" in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_a_run_directory_that_is_too_long_is_refused(place):
    ended = run("serve", "--run-dir", place / ("x" * 100))
    assert ended.returncode == 4
    assert "too long" in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_an_ended_tree_keeps_foreign_files_in_a_named_directory(start_tree, place):
    named = place / "tree-0"
    named.mkdir(mode=0o700)
    (named / "notes.txt").write_text("mine")
    tree = start_tree()
    tree.launcher.terminate()
    assert tree.wait_exit() == 0
    assert [path.name for path in named.iterdir()] == ["notes.txt"]
    (named / "notes.txt").unlink()
    named.rmdir()


def test_from_serve_to_the_first_token(start_tree, tell):
    """Prints the number for people to read; a benchmark in bench/ compares it with a limit."""
    begin = time.monotonic()
    tree = start_tree()
    door = tree.door()
    door.start("Once upon a time", max_new_tokens=1)
    door.step()
    tell(f"serve to first token: {time.monotonic() - begin:.3f} s (ready {tree.start_s:.3f} s)")
