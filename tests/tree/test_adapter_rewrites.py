"""The directory of an adapter is saved again while a load reads it: no rank serves the tensors of one version with the
scale of another, and no two ranks serve different scales.
"""

import json
import signal
import sys

import pytest

from lora_files import ALPHA, config_of, exact_adapter, write_adapter
from process_tree import ROOT
from test_adapter_loads import load, spec_of

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)
from pitstop.digests import text_digest  # noqa: E402

RANKS = ("tp_worker[0.0]", "tp_worker[0.1]")


@pytest.fixture
def tree(start_tree, tmp_path, monkeypatch):
    """A tree of two ranks, with `faults` and `directory`, where an adapter lies."""
    faults = tmp_path / "faults"
    faults.mkdir()
    monkeypatch.setenv("PITSTOP_FAULT_DIR", str(faults))
    tree = start_tree("--tp", 2)
    tree.faults = faults
    tree.directory = write_adapter(tmp_path / "adapter", exact_adapter(1)[0])
    return tree


def begin_load(tree):
    admin = tree.door("admin")
    admin.send("update_weights", call=1, timeout_ms=60_000, update=spec_of(tree.directory))
    return admin


def refusal(admin):
    kind, reply = admin.receive()
    assert kind == "update_reply" and not reply["ok"] and reply["code"] == "data_loss", reply
    (replica,) = admin.call("status")["replicas"]
    assert replica.get("adapters", []) == []
    return reply["message"]


def test_P2_a_directory_that_is_saved_again_amid_a_load_is_refused_by_each_rank(tree):
    for rank in RANKS:  # both have read the configuration there, and no tensor
        (tree.faults / f"{rank}@stage adapter").write_text("stop")
    admin = begin_load(tree)
    for rank in RANKS:
        tree.wait_stopped(rank)
    write_adapter(tree.directory, exact_adapter(2)[0], config_of(lora_alpha=2 * ALPHA))
    for rank in RANKS:
        tree.kill(rank, signal.SIGCONT)
    message = refusal(admin)
    assert f"'{tree.directory}/adapter_config.json' changed" in message, message
    assert "rank 0" in message or "rank 1" in message, message
    load(admin, tree.directory)


def test_P2_a_configuration_that_was_saved_after_its_caller_read_it_is_refused(tree):
    """A fleet's caller reads the configuration, and the ranks read it later."""
    read = text_digest((tree.directory / "adapter_config.json").read_bytes())
    with pitstop.Client(tree.run_dir) as client:
        assert client.load_adapter("x", str(tree.directory), adapter_config_digest=read)["ok"]
        client.unload_adapter("x")
        write_adapter(tree.directory, exact_adapter(2)[0], config_of(lora_alpha=2 * ALPHA))
        with pytest.raises(pitstop.PitstopError, match=f"instead of {read}") as caught:
            client.load_adapter("x", str(tree.directory), adapter_config_digest=read)
    assert caught.value.code == "data_loss"


def test_P2_ranks_that_read_different_configurations_are_named(tree):
    (tree.faults / f"{RANKS[0]}@send worker_staged").write_text("stop")
    with tree.frozen(RANKS[1]):
        admin = begin_load(tree)
        tree.wait_stopped(RANKS[0])  # its vote is ready
        (tree.directory / "adapter_config.json").write_text(json.dumps(config_of(lora_alpha=2 * ALPHA)))
    tree.kill(RANKS[0], signal.SIGCONT)
    message = refusal(admin)
    assert "ranks 0 and 1 " in message and "adapter_config" in message, message
    load(admin, tree.directory)
