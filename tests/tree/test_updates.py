"""Weight updates on a real tree: all or nothing, verified, reversible, with the version of each
token.
"""

import itertools
import json
import pathlib
import shutil
import struct

import pytest

from amid import paused_amid
from pairs import DENSE, pair, shared_tree  # noqa: F401
from process_tree import ROOT
from wire import Refused

GREEDY = {"temperature": 0.0, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
LONG = 600
# For suites that import these fixtures; this suite runs on pairs.
STORIES = str(ROOT / "launch/models/stories")
BARD = str(ROOT / "launch/models/bard")
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
TREE_FLAGS = ("--tp", 2)


@pytest.fixture
def admin(shared_tree, pair):
    """The tree serves the old model before and after, and no request runs."""
    with shared_tree.door("admin") as admin:
        update(admin, pair.old)
        yield admin
        admin.call("continue_generation")
        admin.call("abort", all=True)


def update(admin, path, **spec):
    return admin.call("update_weights", update={"source": {"kind": "disk", "path": path}, **spec})


def start(door, prompt="Once upon a time", tokens=8, **fields):
    fields = {"max_new_tokens": LONG, "logprobs": {"enabled": True}, **SEEDED, **fields}
    rid = door.start(prompt, **fields)
    while len(door.outputs[rid].tokens) < tokens and door.outputs[rid].finish is None:
        door.step()
    return rid


def ended_after(door, rid, epoch):
    """Cancels a long request once it has a token of that version. Returns its output."""
    output = door.outputs[rid]
    while output.finish is None and all(span["epoch"] != epoch for span in output.spans):
        door.step()
    door.send("cancel", rids=[rid])
    return door.finish([rid])[0]


def update_amid(door, admin, path, **spec):
    """Runs requests one after another until an update is answered. So its commit comes during a request or between two,
    however long the update takes. Returns the answer and the outputs."""
    rid, outputs = start(door), []
    admin.send("update_weights", call=1, update={"source": {"kind": "disk", "path": path}, **spec})
    while True:
        outputs += door.finish([rid])
        if admin.socket.poll(0):
            return admin.receive()[1], outputs
        rid = start(door)


def num_met(reply):
    (replica,) = reply["replicas"]
    return sum(replica[name] for name in ("num_kept", "num_recomputed", "num_drained", "num_aborted"))


def joined(spans):
    """Spans of chunks, run-length encoded over the whole output."""
    key = lambda span: {name: value for name, value in span.items() if name != "tokens"}
    return [
        {**fields, "tokens": sum(span["tokens"] for span in group)} for fields, group in itertools.groupby(spans, key)
    ]


@pytest.mark.parametrize("mode", ("staged", "direct"))
@pytest.mark.parametrize("kv_policy", ("keep", "recompute", "drain", "abort"))
def test_P1_P3_every_mode_with_every_policy(door, admin, pair, mode, kv_policy):
    for _ in range(20):
        before = admin.call("status")["replicas"][0]["epoch"]
        reply, outputs = update_amid(door, admin, pair.new, mode=mode, kv_policy=kv_policy, label="bard")
        assert reply["ok"], reply
        if num_met(reply):
            break
        assert all(len(joined(output.spans)) == 1 for output in outputs)
        update(admin, pair.old)
    assert reply["digest"] == pair.new_digest
    assert reply["epoch"] == before + 1
    (replica,) = reply["replicas"]
    assert [rank["phase"] for rank in replica["ranks"]] == ["committed"] * 2
    assert reply["bytes"] > 400_000
    *_, output = [output for output in outputs if output.spans[0]["epoch"] == before]
    spans = joined(output.spans)
    assert sum(span["tokens"] for span in spans) == len(output.tokens) == len(output.logprobs)
    assert output.counts["completion_tokens"] == len(output.tokens)
    assert spans[0]["epoch"] == before and spans[0]["digest"] == pair.old_digest
    if kv_policy == "abort":
        assert output.finish["reason"] == "abort" and len(spans) == 1
    else:
        assert output.finish["reason"] == "length" and len(output.tokens) == LONG
    if kv_policy == "drain":
        assert len(spans) == 1 and replica["num_drained"] == 1
    if kv_policy in ("keep", "recompute"):
        assert [span["epoch"] for span in spans] == [before, before + 1]
        assert spans[1]["label"] == "bard" and spans[1]["digest"] == pair.new_digest
        oldest = before if kv_policy == "keep" else before + 1
        assert (spans[1]["kv_min_epoch"], spans[1]["kv_max_epoch"]) == (oldest, before + 1)
        assert replica["num_kept" if kv_policy == "keep" else "num_recomputed"] == 1
    # The following output is the new model's alone.
    fresh = door.generate("ROMEO:", max_new_tokens=20, **GREEDY)
    assert {span["kv_min_epoch"] for span in fresh.spans} == {before + 1}


def test_P6_unchanged_weights_leave_every_bit_as_it_was(door, admin, pair):
    undisturbed = door.generate("Once upon a time", max_new_tokens=LONG, logprobs={"enabled": True}, **SEEDED)
    fields = {"max_new_tokens": LONG, "logprobs": {"enabled": True}, **SEEDED}
    (rid,) = paused_amid(admin, lambda: [door.start("Once upon a time", **fields)], door.finish)
    assert admin.call("continue_generation")["ok"]
    assert update(admin, pair.old, kv_policy="keep")["ok"]
    assert admin.call("pause_generation", mode="retract")["ok"]
    assert admin.call("rollback_weights")["ok"]
    assert admin.call("continue_generation")["ok"]
    assert update(admin, pair.old, kv_policy="recompute")["ok"]
    assert admin.call("pause_generation", mode="in_place")["ok"]
    assert update(admin, pair.old, mode="direct", kv_policy="keep")["ok"]
    assert admin.call("continue_generation")["ok"]
    (output,) = door.finish([rid])
    assert output.tokens == undisturbed.tokens
    assert output.logprobs == undisturbed.logprobs
    assert len(joined(output.spans)) > 1


def test_P2_a_rollback_returns_to_the_version_before(door, admin, pair):
    first = door.generate("Once upon a time", max_new_tokens=40, **GREEDY)
    assert update(admin, pair.new)["ok"]
    changed = door.generate("Once upon a time", max_new_tokens=40, **GREEDY)
    assert changed.tokens != first.tokens
    back = admin.call("rollback_weights")
    assert back["ok"] and back["digest"] == pair.old_digest
    assert door.generate("Once upon a time", max_new_tokens=40, **GREEDY).tokens == first.tokens
    assert update(admin, pair.new, mode="direct")["ok"]
    nothing = admin.call("rollback_weights")
    assert not nothing["ok"] and nothing["code"] == "failed_precondition"


def test_stage_commit_and_drop_in_separate_calls(door, admin, pair):
    spec = {"source": {"kind": "disk", "path": pair.new}, "label": "two steps"}
    staged = admin.call("stage_weights", update=spec)
    assert staged["ok"] and staged["state"] == "staged"
    assert staged["digest"] == pair.new_digest
    again = admin.call("stage_weights", update=spec)
    assert not again["ok"] and again["code"] == "failed_precondition"
    dropped = admin.call("drop_stage")
    assert dropped["ok"] and dropped["digest"] == pair.old_digest
    assert not admin.call("commit_weights")["ok"]
    assert admin.call("stage_weights", update=spec)["ok"]
    committed = admin.call("commit_weights", kv_policy="recompute")
    assert committed["ok"] and committed["label"] == "two steps"
    assert admin.call("weight_digests")["digest"] == pair.new_digest


def test_P10_digests_are_of_what_is_resident(admin, pair):
    answer = admin.call("weight_digests")
    assert answer["ok"] and answer["digest"] == pair.old_digest
    assert {t["name"]: t["digest"] for t in answer["tensors"]} == pair.old_tensors
    declared = [{"name": n, "digest": d} for n, d in pair.new_tensors.items()]
    good = update(admin, pair.new, manifest=declared, digest=pair.new_digest)
    assert good["ok"], good


def test_P9_a_cached_prefix_is_shared_only_as_far_as_the_request_allows(door, admin, pair):
    prompt = "Once upon a time there was a king who had three sons and a golden apple tree. " * 3
    ask = lambda **fields: door.generate(prompt, max_new_tokens=4, **GREEDY, **fields)
    admin.call("flush_cache", wait_idle=True)
    assert ask().counts["cached_tokens"] == 0
    assert ask().counts["cached_tokens"] > 0
    assert update(admin, pair.new)["ok"]
    assert ask(kv_tolerance="max_lag", kv_max_lag=1).counts["cached_tokens"] > 0
    assert update(admin, pair.old)["ok"]
    stale = ask(kv_tolerance="keep")
    assert stale.counts["cached_tokens"] > 0
    assert stale.spans[0]["kv_min_epoch"] < stale.spans[0]["epoch"]
    clean = ask()
    assert {s["kv_min_epoch"] for s in clean.spans} == {clean.spans[0]["epoch"]}


def read_checkpoint(directory):
    blob = (pathlib.Path(directory) / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + size]), blob[8 + size :]


def write_checkpoint(directory, header, data):
    text = json.dumps(header).encode()
    blob = struct.pack("<Q", len(text)) + text + data
    (directory / "model.safetensors").write_bytes(blob)


def rebuilt(tensors):
    """Header and data of (name, dtype, shape, bytes)."""
    header, data = {}, b""
    for name, dtype, shape, raw in tensors:
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += raw
    return header, data


def tensors_of(header, data):
    entries = [(n, e) for n, e in header.items() if n != "__metadata__"]
    return [(n, e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for n, e in entries]


def with_norm(change):
    """A change of the final norm alone."""
    return lambda h, d: rebuilt([change(*t) if t[0] == "model.norm.weight" else t for t in tensors_of(h, d)])


BAD = {
    "a missing tensor": (
        lambda h, d: rebuilt([t for t in tensors_of(h, d) if t[0] != "model.norm.weight"]),
        "model.norm.weight",
    ),
    "an extra one": (
        lambda h, d: rebuilt([*tensors_of(h, d), ("model.extra.weight", "BF16", [2], b"1234")]),
        "model.extra.weight",
    ),
    "a wrong shape": (with_norm(lambda n, t, s, raw: (n, t, [2, 64], raw)), "[2, 64]"),
    "a wrong dtype": (with_norm(lambda n, t, s, raw: (n, "I16", s, raw)), "I16"),
    "a truncated file": (lambda h, d: (h, d[:-1000]), "model.safetensors"),
    "a NaN": (lambda h, d: (h, d[:-2] + b"\xc0\x7f"), "not finite"),
}


@pytest.mark.parametrize("what", BAD)
def test_P2_a_bad_checkpoint_is_refused_and_the_old_version_serves_on(door, admin, pair, place, what):
    edit, named = BAD[what]
    shutil.copytree(pair.new, place / "bad")
    write_checkpoint(place / "bad", *edit(*read_checkpoint(pair.new)))
    expected = door.generate("Once upon a time", max_new_tokens=LONG, **SEEDED)
    rid = start(door)
    reply = update(admin, str(place / "bad"))
    assert not reply["ok"] and reply["code"], reply
    assert named in reply["message"] and "rank " in reply["message"], reply["message"]
    assert reply["state"] == "serving" and reply["digest"] == pair.old_digest
    assert door.finish([rid])[0].tokens == expected.tokens
    assert admin.call("weight_digests")["digest"] == pair.old_digest
    if what == "a NaN":
        assert update(admin, str(place / "bad"), allow_nonfinite=True)["ok"]


def test_P10_a_flipped_bit_is_found_by_the_manifest(admin, pair, place):
    shutil.copytree(pair.new, place / "bad")
    header, data = read_checkpoint(pair.new)
    write_checkpoint(place / "bad", header, data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
    declared = [{"name": n, "digest": d} for n, d in pair.new_tensors.items()]
    reply = update(admin, str(place / "bad"), manifest=declared)
    assert not reply["ok"] and reply["code"] == "data_loss", reply
    reply = update(admin, str(place / "bad"), digest=pair.new_digest)
    assert not reply["ok"] and reply["code"] == "data_loss"
    assert admin.call("weight_digests")["digest"] == pair.old_digest


def test_an_old_epoch_is_refused(admin, pair):
    now = admin.call("status")["replicas"][0]["epoch"]
    for epoch in (1, now):
        reply = update(admin, pair.new, epoch=epoch)
        assert not reply["ok"] and reply["code"] == "failed_precondition", reply
    assert update(admin, pair.new, epoch=now + 10)["epoch"] == now + 10


def test_P2_torn_refuses_to_generate_until_a_complete_update(start_tree, place):
    tree = start_tree("--tp", 2)
    door, admin = tree.door(), tree.door("admin")
    shutil.copytree(DENSE.new, place / "bad")
    header, data = read_checkpoint(DENSE.new)
    write_checkpoint(place / "bad", header, data[:-2] + b"\xc0\x7f")  # not finite: noticed when it is written
    reply = update(admin, str(place / "bad"), mode="direct")
    assert not reply["ok"] and reply["state"] == "torn", reply
    assert admin.call("status")["replicas"][0]["state"] == "torn"
    try:
        finish = door.generate("Once upon a time", max_new_tokens=5, **GREEDY).finish
        code, message = finish.get("code"), finish.get("message", "")
    except Refused as refused:
        code, message = refused.code, refused.message
    assert code == "failed_precondition" and "torn" in message
    assert not update(admin, DENSE.new, partial=True, epoch=9)["ok"]
    assert update(admin, DENSE.old, mode="direct")["ok"]
    assert len(door.generate("Once upon a time", max_new_tokens=5, **GREEDY).tokens) == 5


def pause_with_both_running(door, admin):
    """A request on each of two replicas, frozen half-way. Tries again, as one may end while the
    other begins.
    """
    for _ in range(20):
        rids = [door.start("Once upon a time", max_new_tokens=LONG, replica=replica, **SEEDED) for replica in (0, 1)]
        while not all(door.outputs[rid].tokens for rid in rids):
            door.step()
        parts = admin.call("pause_generation", mode="in_place")["parts"]
        if [part["num_frozen"] for part in parts] == [1, 1]:
            return rids
        assert admin.call("continue_generation")["ok"]
        door.finish(rids)
    raise AssertionError("one request was always over when the other had begun")


def test_P2_replicas_change_together_or_not_at_all(start_tree):
    tree = start_tree("--dp", 2)
    door, admin = tree.door(), tree.door("admin")
    rids = pause_with_both_running(door, admin)
    assert not update(admin, "/nowhere")["ok"]
    reply = update(admin, DENSE.new, label="both")
    assert admin.call("continue_generation")["ok"]
    assert reply["ok"] and len(reply["replicas"]) == 2
    states = admin.call("status")["replicas"]
    assert {(state["epoch"], state["digest"]) for state in states} == {(2, DENSE.new_digest)}
    for output in door.finish(rids):
        assert [span["epoch"] for span in joined(output.spans)] == [1, 2]


def test_a_tensor_is_read_back_whole(admin, pair):
    header, data = read_checkpoint(pair.old)
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.2.mlp.down_proj.weight"):
        begin, end = header[name]["data_offsets"]
        admin.send("get_weights", call=77, name=name)
        assert admin.socket.poll(20_000)
        kind, _, raw = admin.socket.recv_multipart()
        assert kind == b"weights_reply" and raw == data[begin:end]
    with pytest.raises(Refused) as refused:
        admin.call("get_weights", name="model.layers.1.self_attn.k_proj.weigth")
    assert refused.value.code == "not_found"


@pytest.mark.parametrize("mode", ("staged", "direct"))
def test_P3_a_version_without_a_label_has_none(door, admin, pair, mode):
    """An update without a label must not keep the label of earlier weights; a rollback restores it."""
    for label in ("p1", ""):
        reply = update(admin, pair.new, mode=mode, label=label)
        assert reply.get("label", "") == label
    (replica,) = admin.call("status")["replicas"]
    assert "label" not in replica and replica["digest"] == pair.new_digest
    spans = door.generate("Once", max_new_tokens=4, **GREEDY).spans
    assert {span.get("label", "") for span in spans} == {""}
    if mode == "direct":
        return  # there is no copy to go back to
    admin.call("set_weight_label", label="p2")
    update(admin, pair.old)
    assert admin.call("rollback_weights")["label"] == "p2"
    assert admin.call("status")["replicas"][0]["label"] == "p2"
