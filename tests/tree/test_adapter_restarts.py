"""Adapters after a restart: back with the same tensors and configuration, or lost and named."""

import json
import shutil
import sys

import pytest

from adapter_loads import load, source_of, tokens_with
from lora_files import config_of, exact_adapter, write_adapter
from process_tree import ROOT, wait_until
from test_restart import crash

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"


@pytest.fixture
def adapters(tmp_path):
    """Two directories, of adapters that tell other stories."""
    return [write_adapter(tmp_path / str(seed), exact_adapter(seed)[0]) for seed in (1, 2)]


def refusal(tree, adapter):
    finish = tree.door().generate(PROMPT, max_new_tokens=1, adapter=adapter).finish
    assert finish["code"] == "not_found", finish
    return finish["message"]


def loaded(admin):
    """{name: what status says}, the same at every replica."""
    said = [
        {each["adapter"]["name"]: (each["adapter"], each.get("path", "")) for each in replica.get("adapters", [])}
        for replica in admin.call("status")["replicas"]
    ]
    assert all(each == said[0] for each in said)
    return said[0]


def test_P2_a_restart_brings_adapters_back(start_tree, adapters):
    """The same adapters are back before the first request, after each restart."""
    tree = start_tree("--restart", "--dp", 2)
    admin = tree.door("admin")
    for name in ("a", "b", "gone"):
        load(admin, adapters[0], name=name)
    newer = load(admin, adapters[1], name="a", label="newer, 2")
    tokens = {name: tokens_with(tree, name) for name in ("a", "b", "")}
    assert admin.call("unload_adapter", name="gone")["ok"]
    before = loaded(admin)
    for name in ("tp_worker[1.0]", "scheduler_proc[0]"):
        _, _, admin = crash(tree, name)
        after = loaded(admin)
        assert sorted(after) == ["a", "b"]
        for each, (version, path) in after.items():
            old, old_path = before[each]
            assert {**version, "version": 0} == {**old, "version": 0} and path == old_path
        assert after["a"][0]["digest"] == newer["digest"]
        for _ in range(2):  # at each replica
            assert {each: tokens_with(tree, each) for each in tokens} == tokens
        assert refusal(tree, "gone") == "no adapter 'gone' is loaded; loaded are 'a', 'b'"
    assert admin.call("unload_adapter", name="b")["ok"]
    crash(tree, "tp_worker[0.0]")
    assert refusal(tree, "b") == "no adapter 'b' is loaded; loaded are 'a'"


def test_P2_an_adapter_that_is_another_one_by_now_is_lost_and_named(start_tree, adapters, tmp_path):
    """An adapter is lost if its tensors, configuration or directory have changed, or if it never had a directory."""
    tree = start_tree("--restart")
    admin = tree.door("admin")
    names = ("same", "tensors", "config", "removed")
    places = {name: tmp_path / f"place-{name}" for name in names}
    for name, place in places.items():
        shutil.copytree(adapters[0], place)
        load(admin, place, name=name)
    digest = loaded(admin)["same"][0]["digest"]
    with pitstop.Client(tree.run_dir) as client:
        client.update_weights(
            source=source_of(exact_adapter(1)[0]),
            adapter="sent",
            adapter_config=json.dumps(config_of()),
            label="step 3",
        )
    tokens = tokens_with(tree, "same")
    shutil.copy(adapters[1] / "adapter_model.safetensors", places["tensors"])
    (places["config"] / "adapter_config.json").write_text(json.dumps(config_of(lora_alpha=7)))
    shutil.rmtree(places["removed"])
    for _ in (1, 2):
        _, _, admin = crash(tree)
        assert list(loaded(admin)) == ["same"]
        assert tokens_with(tree, "same") == tokens
        for name in ("tensors", "config", "removed"):
            said = refusal(tree, name)
            assert f"with digest {digest} is lost; load it again from {places[name]}" in said, said
        assert "('step 3')" in refusal(tree, "sent")
        lost = {each["adapter"]["name"] for each in admin.call("status")["replicas"][0]["lost_adapters"]}
        assert lost == {"tensors", "config", "removed", "sent"}
        log = tree.log()
        assert f"adapter 'config' is lost: {places['config']}" in log and "(adapter_config_digest)" in log
        assert "adapter 'sent' is lost: its tensors were sent" in log
    shutil.copytree(adapters[0], places["removed"])  # it was absent only for a while
    _, _, admin = crash(tree)
    assert sorted(loaded(admin)) == ["removed", "same"]
    assert tokens_with(tree, "removed") == tokens
    load(admin, places["config"], name="config")
    assert admin.call("unload_adapter", name="sent")["code"] == "not_found"
    assert refusal(tree, "sent") == "no adapter 'sent' is loaded; loaded are 'config', 'removed', 'same'"


def send(tree, seed, label):
    """Loads tensors that no directory has, as "sent". Returns the answer."""
    with pitstop.Client(tree.run_dir) as client:
        return client.update_weights(
            source=source_of(exact_adapter(seed)[0]),
            adapter="sent",
            adapter_config=json.dumps(config_of()),
            label=label,
        )


def names_in(kept):
    return sorted(path.name for path in kept.iterdir() if "adapter" in path.name)


@pytest.mark.parametrize("flags", ((), ("--tp", 2), ("--dp", 2)), ids=("one", "tp2", "dp2"))
def test_P2_tensors_that_were_sent_come_back_from_where_they_were_kept(start_tree, tmp_path, flags):
    kept = tmp_path / "kept"
    tree = start_tree("--restart", "--keep-committed", kept, *flags)
    older = send(tree, 1, "step 1")
    newer = send(tree, 2, "step 2")
    directory = kept / f"adapter-{newer['epoch']}"
    both = sorted((f"adapter-{older['epoch']}", directory.name))
    wait_until(lambda: names_in(kept) == both, "it to be kept beside the one to which a rollback returns")
    assert sorted(path.name for path in directory.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    tokens = tokens_with(tree, "sent")
    for _ in (1, 2):
        _, _, admin = crash(tree, "tp_worker[0.0]")
        version, path = loaded(admin)["sent"]
        assert (version["digest"], version["label"], path) == (newer["digest"], "step 2", str(directory))
        assert tokens_with(tree, "sent") == tokens
        directory = kept / f"adapter-{version['version']}"  # where this life keeps it
        wait_until(directory.is_dir, "it to be kept again")
        assert len(names_in(kept)) == 2, "the one that it came from, and its own"
    load(admin, directory, name="copy", digest=newer["digest"])  # PEFT's form, as any other
    assert tokens_with(tree, "copy") == tokens
    for name in ("sent", "copy"):
        assert admin.call("unload_adapter", name=name)["ok"]
    crash(tree)
    assert names_in(kept) == []
    assert refusal(tree, "sent") == "no adapter 'sent' is loaded; none is loaded"


def test_P2_a_version_to_which_a_rollback_returned_comes_back(start_tree, tmp_path):
    """Its tensors, and those of a partial update, are in no directory but the one that keeps them."""
    kept = tmp_path / "kept"
    tree = start_tree("--restart", "--keep-committed", kept)
    first = send(tree, 1, "step 1")
    before = tokens_with(tree, "sent")
    send(tree, 2, "step 2")
    with pitstop.Client(tree.run_dir) as client:
        back = client.rollback_adapter("sent")
        assert (back["digest"], back["label"]) == (first["digest"], "step 1")
        wait_until((kept / f"adapter-{back['epoch']}").is_dir, "it to be kept under its new number")
    _, _, admin = crash(tree, "tp_worker[0.0]")
    version, _ = loaded(admin)["sent"]
    assert (version["digest"], version["label"]) == (first["digest"], "step 1")
    assert tokens_with(tree, "sent") == before
    assert admin.call("rollback_weights", adapter="sent")["code"] == "failed_precondition", "a restart gives it up"
    part = {name: tensor for name, tensor in exact_adapter(2)[0].items() if "layers.0." in name}
    with pitstop.Client(tree.run_dir) as client:
        mixed = client.update_weights(source=source_of(part), adapter="sent", partial=True, label="mixed")
    assert mixed["digest"] not in (first["digest"], version["digest"])
    mixed_tokens = tokens_with(tree, "sent")
    wait_until((kept / f"adapter-{mixed['epoch']}").is_dir, "it to be kept")
    _, _, admin = crash(tree)
    version, _ = loaded(admin)["sent"]
    assert (version["digest"], version["label"]) == (mixed["digest"], "mixed")
    assert tokens_with(tree, "sent") == mixed_tokens


def test_P2_values_that_were_accepted_come_back(start_tree, tmp_path):
    """An adapter that is not finite, from a directory and sent."""
    adapter = exact_adapter(1)[0]
    next(iter(adapter.values()))[0, 0] = float("inf")
    write_adapter(tmp_path / "it", adapter)
    kept = tmp_path / "kept"
    tree = start_tree("--restart", "--keep-committed", kept)
    admin = tree.door("admin")
    sent = {"source": source_of(adapter), "adapter": "sent", "adapter_config": json.dumps(config_of())}
    with pitstop.Client(tree.run_dir) as client:
        with pytest.raises(pitstop.PitstopError, match="not finite"):
            client.update_weights(**sent)
        client.update_weights(**sent, allow_nonfinite=True)
    load(admin, tmp_path / "it", name="read", allow_nonfinite=True)
    before = {name: version["digest"] for name, (version, _) in loaded(admin).items()}
    assert list(before) == ["read", "sent"]
    wait_until(lambda: len(names_in(kept)) == 2, "both to be kept")
    _, _, admin = crash(tree)
    assert {name: version["digest"] for name, (version, _) in loaded(admin).items()} == before, tree.log()


def test_P2_a_version_that_was_half_written_is_lost_and_named(start_tree, tmp_path, monkeypatch):
    kept, faults = tmp_path / "kept", tmp_path / "faults"
    faults.mkdir()
    monkeypatch.setenv("PITSTOP_FAULT_DIR", str(faults))
    held = faults / "tp_worker[0.1]@keep_adapter"
    held.write_text("delay 60000")  # delays only the thread that writes: the rank still answers
    tree = start_tree("--tp", 2, "--restart", "--keep-committed", kept)
    sent = send(tree, 1, "step 1")
    wait_until(lambda: not held.exists(), "the rank to be amid its part of the file")
    assert names_in(kept) == [f".adapter-{sent['epoch']}"]
    crash(tree, "tp_worker[0.1]")
    assert f"with digest {sent['digest']} is lost; load it again" in refusal(tree, "sent")
    assert names_in(kept) == []
