"""Loads of adapters on trees: the calls, what requests get, and what must hold if a process dies or stops amid a load."""

import signal

import numpy

from process_tree import wait_until
from test_deaths import EXIT_CODES, reasons
from test_updates import GREEDY

PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
HELD = "tp_worker[0.1]"  # the rank that stops at a phase (test_faults.py)


def spec_of(directory, name="policy", **more):
    return {"adapter": name, "source": {"kind": "disk", "path": str(directory)}, **more}


def load(admin, directory, **more):
    reply = admin.call("update_weights", update=spec_of(directory, **more))
    assert reply["ok"], reply
    return reply


def source_of(adapter):
    """The bytes of tensors, in a call."""
    tensors = {name: numpy.ascontiguousarray(tensor, numpy.float32) for name, tensor in adapter.items()}
    return {
        "kind": "tensors",
        "format": "flattened",
        "tensors": [{"name": name, "dtype": "F32", "shape": list(tensor.shape)} for name, tensor in tensors.items()],
        "payloads": [{"data": b"".join(tensor.tobytes() for tensor in tensors.values())}],
    }


def tokens_with(tree, adapter="policy"):
    return tree.door().generate(PROMPT, max_new_tokens=16, adapter=adapter, **GREEDY).tokens


def assert_ends_with_every_answer(tree, name, door, rids, admin):
    """Kills a process amid an update that `admin` waits for, and requests of `door`."""
    tree.kill(name)
    if name != "tokenizer_proc":
        for rid, reason in reasons(door, rids).items():
            assert reason.startswith("unavailable: "), (rid, reason)
        kind, reply = admin.receive()
        assert kind in ("update_reply", "error") and reply["code"] == "unavailable", reply
    assert tree.wait_exit() == EXIT_CODES.get(name, 13)


def assert_drops_late_stage(tree, admin):
    """An update whose stage stands still on HELD ends with its deadline, and its stage is dropped once HELD goes on."""
    kind, reply = admin.receive()
    assert kind == "update_reply" and reply["code"] == "deadline_exceeded", reply
    assert "rank 1" in reply["message"] and "stage" in reply["message"], reply["message"]
    tree.kill(HELD, signal.SIGCONT)
    wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "running", "the stage to be dropped")
