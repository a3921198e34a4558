"""Memory by tags, labels, shutdown and the wait for first weights, on real trees: design section 6."""

import pathlib
import re

import pytest

from amid import paused_amid, running_amid
from pairs import DENSE, pair, shared_tree  # noqa: F401
from process_tree import run, wait_until
from wire import Refused

GREEDY = {"temperature": 0.0, "ignore_eos": True}
LONG = 600
TREE_FLAGS = ("--tp", 2, "--dp", 2)


@pytest.fixture
def admin(shared_tree, pair):
    with shared_tree.door("admin") as admin:
        yield admin
        admin.call("abort", all=True)
        admin.call("resume_memory")
        admin.call("continue_generation")
        update(admin, pair.old)


def update(admin, path, **spec):
    return admin.call("update_weights", update={"source": {"kind": "disk", "path": path}, **spec})


def anonymous_kib(tree):
    """The workers' own physical memory, as the kernel counts it."""
    texts = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in tree.pids("tp_worker")]
    return sum(int(re.search(r"RssAnon:\s+(\d+)", text).group(1)) for text in texts)


def resident_bytes(admin, name):
    """The memory that all replicas report under a tag in `status`."""
    return sum(
        tag["resident_bytes"]
        for replica in admin.call("status")["replicas"]
        for tag in replica["memory"]
        if tag["tag"] == name
    )


def test_status_reports_the_resident_memory_that_the_kernel_counts(start_tree):
    tree = start_tree(*TREE_FLAGS, "--max-total-tokens", 200_000)
    door, admin = tree.door(), tree.door("admin")
    # A worker has more than the tags' memory: its code, and its working memory.
    wait_until(lambda: resident_bytes(admin, "weights") > 0, "a first measurement")
    weights = resident_bytes(admin, "weights")
    for number in range(8):  # with nothing in common, so that each has pages of its own
        door.generate(f"{number} " + "Once upon a time " * 150, max_new_tokens=5, **GREEDY)
    wait_until(lambda: resident_bytes(admin, "kv_cache") > 1 << 20, "what prompts take")
    # An idle worker touches pages for the next prompts, so the sum may grow; RssAnon is read afterwards.
    kv = resident_bytes(admin, "kv_cache")
    assert weights + kv <= 1024 * anonymous_kib(tree)
    replicas = admin.call("status")["replicas"]
    assert kv < sum(worker["kv_bytes"] for replica in replicas for worker in replica["workers"]) / 2
    assert update(admin, DENSE.new)["ok"]
    wait_until(lambda: resident_bytes(admin, "weights") > 1.5 * weights, "the second copy")
    both = resident_bytes(admin, "weights") + resident_bytes(admin, "kv_cache")
    assert both <= 1024 * anonymous_kib(tree)


def states(reply):
    return [{tag["tag"]: tag["state"] for tag in part["tags"]} for part in reply["parts"]]


def begin(door, rid, **fields):
    """Returns a begin() for amid.py, which starts this request."""
    return lambda: [door.start("Once upon a time", rid=rid, max_new_tokens=LONG, **{**GREEDY, **fields})]


def start(door, rid, **fields):
    begin(door, rid, **fields)()
    while len(door.outputs[rid].tokens) < 8:
        door.step()


def expect_unreadable(admin, why):
    """Checks that released memory is neither digested nor read, and that no process dies of such a call."""
    digests = admin.call("weight_digests")
    assert digests["code"] == "failed_precondition" and why in digests["message"], digests
    with pytest.raises(Refused, match=f"failed_precondition.*{why}"):
        admin.call("get_weights", name="model.norm.weight")


def test_P8_memory_goes_back_measured_and_comes_again(shared_tree, door, admin, pair):
    door.generate("Once upon a time", max_new_tokens=200, **GREEDY)
    before = anonymous_kib(shared_tree)
    released = admin.call("release_memory", keep_weights=False)
    assert released["ok"], released
    assert states(released) == [{"weights": "released", "kv_cache": "released"}] * 2
    assert not any(part.get("has_weights", True) for part in released["parts"])
    freed = sum(tag["freed_bytes"] for part in released["parts"] for tag in part["tags"])
    assert freed > 0
    # The workers' other memory changes meanwhile by a few pages only.
    assert abs((before - anonymous_kib(shared_tree)) - freed / 1024) < 0.1 * freed / 1024 + 512
    expect_unreadable(admin, "released")
    assert admin.call("resume_memory")["ok"]
    expect_unreadable(admin, "no weights")
    refused = door.generate("Once", max_new_tokens=1).finish
    assert refused["code"] == "failed_precondition" and "no weights" in refused["message"]
    brought = update(admin, pair.new)
    assert brought["ok"] and brought["digest"] == pair.new_digest
    assert door.generate("Once upon a time", max_new_tokens=5, **GREEDY).finish["reason"] == "length"


def test_P4_sleeping_and_waking_loses_no_request_and_changes_no_token(door, admin):
    undisturbed = door.generate("Once upon a time", max_new_tokens=LONG, **GREEDY)
    for rid in ("s1", "s2", "s3"):
        start(door, rid)
    assert admin.call("pause_generation", mode="retract")["ok"]
    assert admin.call("release_memory", keep_weights=True)["ok"]
    late = door.start("Once upon a time", max_new_tokens=LONG, **GREEDY)
    too_early = admin.call("continue_generation")
    assert not too_early["ok"] and "is released" in too_early["message"]
    assert admin.call("resume_memory", tags=["weights"])["ok"]
    assert admin.call("resume_memory", tags=["kv_cache"])["ok"]
    assert admin.call("continue_generation")["ok"]
    for output in door.finish(["s1", "s2", "s3", late]):
        assert output.tokens == undisturbed.tokens


def test_a_wrong_call_is_a_typed_error_of_every_replica_and_changes_nothing(door, admin, pair):
    running_amid(admin, begin(door, "w1"), door.finish)
    busy = admin.call("release_memory")
    assert not busy["ok"] and busy["code"] == "failed_precondition" and "not paused" in busy["message"]
    door.finish(["w1"])
    # The replica that was idle has released; the same call again completes the other.
    completed = admin.call("release_memory", tags=["weights", "kv_cache"])
    assert completed["ok"], completed
    assert "already released" in admin.call("release_memory", tags=["weights"])["message"]
    assert "released" in update(admin, pair.new)["message"]
    for fields in ({"tags": ["graphs"]}, {"tags": ["weights", "weights"]}, {"keep": True}):
        with pytest.raises(Refused):
            admin.call("release_memory", **fields)
    assert admin.call("resume_memory")["ok"]
    assert "not currently released" in admin.call("resume_memory")["message"]


def test_P3_a_new_label_splits_spans_at_a_token(door, admin):
    running_amid(admin, begin(door, "l1", logprobs={"enabled": True}), door.finish)
    label = admin.call("set_weight_label", label="after")
    assert label["ok"] and len(label["parts"]) == 2
    (output,) = door.finish(["l1"])
    labels = [span.get("label", "") for span in output.spans]
    assert labels[-1] == "after" and labels[0] != "after"
    assert len({span["epoch"] for span in output.spans}) == 1
    assert sum(span["tokens"] for span in output.spans) == LONG == len(output.logprobs)


def test_status_tells_pauses_memory_and_the_last_updates(door, admin, pair):
    assert update(admin, pair.new, label="told")["ok"]
    assert not update(admin, "/nowhere")["ok"]
    admin.call("pause_generation", mode="retract")
    admin.call("release_memory", tags=["kv_cache"])
    status = admin.call("status")
    assert status["is_ready"] and status["weights_path"] == pair.new
    assert [entry["ok"] for entry in status["updates"][-2:]] == [True, False]
    assert status["updates"][-2]["label"] == "told" and status["updates"][-2]["bytes"] > 0
    for replica in status["replicas"]:
        assert replica["state"] == "released" and replica["pause_mode"] == "retract"
        assert replica["paused_s"] > 0 and replica["pauses_total"] >= 1
        memory = {tag["tag"]: tag for tag in replica["memory"]}
        assert memory["kv_cache"]["state"] == "released"
        assert memory["weights"]["resident_bytes"] > 0


def test_a_tree_may_wait_for_its_first_weights(start_tree):
    tree = start_tree("--checkpoint-engine-wait-weights-before-ready")
    assert "waits for its first weights" in tree.ready_line
    door, admin = tree.door(), tree.door("admin")
    status = admin.call("status")
    assert status["is_ready"] is False and status["replicas"][0]["state"] == "awaiting_weights"
    refused = door.generate("Once", max_new_tokens=1).finish
    assert refused["code"] == "failed_precondition" and "no weights" in refused["message"]
    partial = update(admin, DENSE.new, partial=True, epoch=5)
    assert not partial["ok"] and "complete" in partial["message"]
    # Requests that come under a pause wait for the weights.
    admin.call("pause_generation", mode="in_place")
    early = door.start("Once upon a time", max_new_tokens=5, **GREEDY)
    wait_until(lambda: admin.call("status")["replicas"][0]["num_waiting"] == 1, "the request to be queued")
    assert admin.call("continue_generation")["ok"]
    assert update(admin, DENSE.new, label="first")["digest"] == DENSE.new_digest
    (output,) = door.finish([early])
    assert [span["label"] for span in output.spans][0] == "first"
    assert admin.call("status")["is_ready"] is True


def test_shutdown_drains_and_ends_the_tree_with_exit_code_0(start_tree):
    tree = start_tree()
    door, admin = tree.door(), tree.door("admin")
    (rid,) = paused_amid(admin, begin(door, "s1"), door.finish)
    with tree.frozen("tp_worker[0.0]"):  # the worker is stopped, so that the request does not end
        admin.call("continue_generation")
        assert admin.call("shutdown", drain_s=100.0)["open_requests"] == 1
        late = door.start("Too late", max_new_tokens=1)
        with pytest.raises(Refused) as refused:
            door.finish([late])
        assert refused.value.code == "unavailable" and "shutting down" in refused.value.message
    (output,) = door.finish([rid])
    assert len(output.tokens) == LONG
    assert tree.wait_exit() == 0
    tree.check_gone()


def test_the_commands_do_the_same(start_tree):
    tree = start_tree()

    def command(name, *arguments):
        done = run(name, *arguments, "--run-dir", tree.run_dir)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "version 1" in command("label", "step-3")
    assert "released" in command("release", "kv_cache", "weights", "--keep-weights")
    assert "kept in host memory" not in command("resume")
    refused = run("resume", "weights", "--run-dir", tree.run_dir)
    assert refused.returncode == 1 and "not currently released" in refused.stderr
    assert run("release", "graphs", "--run-dir", tree.run_dir).returncode == 2
    assert "the tree ends" in command("shutdown")
    assert tree.wait_exit() == 0
    tree.check_gone()
