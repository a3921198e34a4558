"""Adapters on trees whose processes die or stop during a load, from every kind of source, and by
the command.
"""

import json
import os
import signal
import sys

import pytest

from adapter_loads import (
    HELD,
    PROMPT,
    assert_drops_late_stage,
    assert_ends_with_every_answer,
    load,
    source_of,
    spec_of,
    tokens_with,
)
from lora_files import config_of, exact_adapter, write_adapter
from process_tree import ROOT, run, wait_until
from test_deaths import start_long
from test_faults import PHASES, PROCESSES, start_held  # noqa: F401  (a fixture)
from test_updates import GREEDY, LONG, joined, start

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two directories, of adapters with different stories."""
    place = tmp_path_factory.mktemp("adapters")
    return [write_adapter(place / str(seed), exact_adapter(seed)[0]) for seed in (1, 2)]


def begin_load(tree, directory, timeout_ms=60_000):
    """Sends a load and waits until the worker has stopped at the phase."""
    admin = tree.door("admin")
    admin.send("update_weights", call=1, timeout_ms=timeout_ms, update=spec_of(directory))
    tree.wait_stopped(HELD)
    return admin


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", PROCESSES)
def test_P2_a_process_killed_in_a_load_ends_the_tree_with_every_answer(start_held, adapters, phase, name):  # noqa: F811
    tree = start_held(phase)
    door = tree.door()
    rids = start_long(door)
    admin = begin_load(tree, adapters[0])
    assert_ends_with_every_answer(tree, name, door, rids, admin)
    for rid in rids:  # the model's version is what it was
        assert {span["epoch"] for span in door.outputs[rid].spans} <= {1}


@pytest.mark.parametrize("phase", PHASES)
def test_P4_a_worker_that_goes_on_completes_the_load(start_held, adapters, phase):  # noqa: F811
    tree = start_held(phase)
    before = tokens_with(tree, adapter="")
    admin = begin_load(tree, adapters[0])
    tree.kill(HELD, signal.SIGCONT)
    kind, reply = admin.receive()
    assert kind == "update_reply" and reply["ok"] and reply["adapter"] == "policy", reply
    (replica,) = admin.call("status")["replicas"]
    (loaded,) = replica["adapters"]
    assert loaded["adapter"]["digest"] == reply["digest"] and replica["epoch"] == 1
    assert tokens_with(tree, adapter="") == before != tokens_with(tree)


@pytest.mark.parametrize("phase", ("stage_begin", "stage_half"))
def test_P5_a_worker_that_stands_still_in_a_load_is_named_by_the_deadline(start_held, adapters, phase):  # noqa: F811
    tree = start_held(phase)
    admin = begin_load(tree, adapters[0], timeout_ms=4000)
    assert_drops_late_stage(tree, admin)
    assert admin.call("status")["replicas"][0].get("adapters", []) == []
    refused = tree.door().generate(PROMPT, max_new_tokens=1, adapter="policy").finish
    assert refused["code"] == "not_found" and "no adapter 'policy' is loaded" in refused["message"], refused


def test_P5_a_worker_that_stands_still_in_the_commit_carries_it_out_when_it_comes_to(start_held, adapters):  # noqa: F811
    tree = start_held("commit_begin")
    admin = begin_load(tree, adapters[0], timeout_ms=6000)
    kind, reply = admin.receive()
    assert kind == "update_reply" and reply["code"] == "deadline_exceeded", reply
    tree.kill(HELD, signal.SIGCONT)
    wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "running", "the commit to be done")
    (loaded,) = admin.call("status")["replicas"][0]["adapters"]
    assert loaded["adapter"]["name"] == "policy" and len(tokens_with(tree)) == 16


@pytest.mark.parametrize("policy", ("finish", "keep", "recompute"))
def test_P1_P3_open_requests_continue_as_the_load_says(shared_tree, adapters, policy):
    door, admin = shared_tree.door(), shared_tree.door("admin")
    first = load(admin, adapters[0])
    rid, alone = start(door, adapter="policy"), start(door)
    admin.call("pause_generation", mode="in_place")  # both are amid their output
    second = load(admin, adapters[1], label="second", adapter_policy=policy)
    admin.call("continue_generation")
    output, other = door.finish([rid, alone])
    assert len(output.tokens) == sum(span["tokens"] for span in output.spans) == LONG
    said = [(span["adapter"]["version"], span["kv_min_adapter"]) for span in joined(output.spans)]
    moved = {
        "finish": [],
        "keep": [(second["epoch"], first["epoch"])],
        "recompute": [(second["epoch"], second["epoch"])],
    }
    assert said == [(first["epoch"], first["epoch"]), *moved[policy]]
    last = joined(output.spans)[-1]["adapter"]
    newest = first if policy == "finish" else second
    assert (last["name"], last["digest"], last.get("label", "")) == (
        "policy",
        newest["digest"],
        newest.get("label", ""),
    )
    assert output.counts.get("retractions", 0) == (policy == "recompute")
    assert "adapter" not in other.spans[0] and other.counts.get("retractions", 0) == 0
    (replica,) = admin.call("status")["replicas"]
    assert [each["adapter"]["digest"] for each in replica["adapters"]] == [second["digest"]]
    assert admin.call("unload_adapter", name="policy")["ok"]


def test_a_session_of_buckets_brings_an_adapter(shared_tree, adapters):
    admin = shared_tree.door("admin")
    expected = load(admin, adapters[0])
    tokens = tokens_with(shared_tree)
    items = list(exact_adapter(1)[0].items())
    halves = dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])
    with pitstop.Client(shared_tree.run_dir) as client:
        session = client.begin_update(adapter="sent", adapter_config=json.dumps(config_of()))["session"]
        for half in halves:
            client.update_bucket(source_of(half), session=session)
        with pytest.raises(pitstop.PitstopError, match="continue by the adapter_policy"):
            client.commit_weights(kv_policy="recompute", session=session)
        assert client.commit_weights(session=session)["digest"] == expected["digest"]
        assert tokens_with(shared_tree, "sent") == tokens
        for name in ("policy", "sent"):
            client.unload_adapter(name)


def test_an_adapter_half_sent_is_never_loaded(shared_tree):
    items = list(exact_adapter(1)[0].items())
    half = source_of(dict(items[: len(items) // 2]))
    spec = {"adapter": "half", "adapter_config": json.dumps(config_of())}
    with pitstop.Client(shared_tree.run_dir) as client:
        with pytest.raises(pitstop.PitstopError, match="is missing"):
            client.update_weights(source=half, **spec)
        session = client.begin_update(**spec)["session"]
        client.update_bucket(half, session=session)
        with pytest.raises(pitstop.PitstopError, match="is missing"):
            client.commit_weights(session=session)
        assert client.status()["replicas"][0].get("adapters", []) == []


def test_a_file_that_changes_after_the_load_changes_nothing(shared_tree, adapters, tmp_path):
    """A version is the resident adapter: its path is not read again."""
    admin = shared_tree.door("admin")
    copy = write_adapter(tmp_path / "a", exact_adapter(1)[0])
    first = load(admin, copy)
    tokens = tokens_with(shared_tree)
    write_adapter(copy, exact_adapter(2)[0])
    assert tokens_with(shared_tree) == tokens
    wrong = admin.call("update_weights", update=spec_of(copy, digest=first["digest"]))
    assert not wrong["ok"] and "digest" in wrong["message"], wrong
    assert tokens_with(shared_tree) == tokens
    second = load(admin, copy)
    assert second["digest"] != first["digest"] == load(admin, adapters[0])["digest"]
    assert admin.call("unload_adapter", name="policy")["ok"]


def test_the_commands_load_use_show_and_unload(shared_tree, adapters):
    def command(*words):
        ended = run(words[0], "--run-dir", shared_tree.run_dir, *words[1:])
        return ended.returncode, ended.stdout, ended.stderr

    relative = os.path.relpath(adapters[0])
    code, out, err = command("load-adapter", "policy", relative, "--label", "step 1")
    assert code == 0 and "adapter 'policy' version" in out and "(step 1)" in out, (out, err)
    admin = shared_tree.door("admin")
    for flags, is_pinned in ((("--pinned",), True), ((), False)):
        code, out, err = command("load-adapter", "policy", relative, *flags)
        assert code == 0, (out, err)
        (said,) = admin.call("status")["replicas"][0]["adapters"]
        assert said.get("pinned", False) == is_pinned, said
    tokens = shared_tree.door().generate(PROMPT, max_new_tokens=16, adapter="policy", **GREEDY)
    code, out, err = command(
        "generate", "--adapter", "policy", "--temperature", "0", "--max-new-tokens", "16", "--ignore-eos", PROMPT
    )
    assert code == 0 and out.rstrip("\n") == tokens.text.rstrip("\n"), (out, err)
    code, out, _ = command("status")
    assert code == 0 and "adapter 'policy'" in out and "0 requests" in out
    code, out, err = command("unload-adapter", "policy")
    assert code == 0 and "0 requests go on with it" in out, (out, err)
    code, _, err = command("unload-adapter", "policy")
    assert code == 1 and "no adapter 'policy' is loaded; none is loaded" in err
    code, _, err = command("load-adapter", "policy")
    assert code == 2 and "name the adapter and the directory" in err
    code, out, err = command("load-adapter", "policy", "/nowhere")
    assert code == 1 and "/nowhere/adapter_config.json" in out + err
