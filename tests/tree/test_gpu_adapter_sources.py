"""Adapters (LoRA) whose tensors are in a GPU's memory when they are sent: handles of PyTorch's, checkpoint-engine's and
vLLM's, NCCL broadcasts, and pitstop.Engine. On the GPU in software.
"""

import base64
import json
import os
import pathlib
import shutil

import pytest

import nccl_trainer
import pitstop
from adapter_loads import PROMPT
from cuda_engine import Trainer
from cuda_sender import Sender
from expert_model import rounded
from gpu_tree import BUILD, machine, needs_gpu, shared_tree  # noqa: F401  (the fixture, in place of the CPU's)
from lora_files import config_of, exact_adapter
from overflowing import write_model
from test_updates import GREEDY
from test_weights_broadcasts import in_thread
from wire import Door

pytestmark = needs_gpu
NAME = "policy"
CONFIG = json.dumps(config_of())


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A directory with bf16 tensors as PEFT names them, in PEFT's file and in the senders'."""
    directory = pathlib.Path(tmp_path_factory.mktemp("adapter"))
    tensors, _ = exact_adapter(1)
    write_model(directory, {f"base_model.model.{name}": rounded(tensor) for name, tensor in tensors.items()})
    shutil.copy(directory / "model.safetensors", directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(CONFIG)
    return directory


@pytest.fixture
def client(shared_tree, monkeypatch):  # noqa: F811
    machine(monkeypatch, shared_tree.run_dir.parent)
    with pitstop.Client(shared_tree.run_dir) as client:
        yield client


@pytest.fixture
def sender(client, adapter):
    with Sender(BUILD, adapter) as sender:
        yield sender


@pytest.fixture
def expected(client, adapter, shared_tree):  # noqa: F811
    """(digest, tokens) of the adapter from its directory; it is unloaded again."""
    digest = client.update_weights(str(adapter), adapter=NAME)["digest"]
    found = digest, tokens(shared_tree)
    client.unload_adapter(NAME)
    return found


def tokens(tree):
    return tree.door().generate(PROMPT, max_new_tokens=4, adapter=NAME, **GREEDY).tokens


def load(client, source, **more):
    return client.update_weights(source=source, adapter=NAME, adapter_config=CONFIG, **more)


def check(client, tree, reply, expected):
    assert (reply["digest"], tokens(tree)) == expected
    client.unload_adapter(NAME)


def pickled(payload):
    return {"kind": "tensors", "format": "pickle", "payloads": [{"data": payload}]}


def uuid_of(tree):
    return tree.door("admin").call("status")["replicas"][0]["workers"][0]["device_uuid"]


@pytest.mark.parametrize("flattened", [False, True])
def test_P10_handles_of_pytorch(client, sender, shared_tree, expected, flattened):  # noqa: F811
    reply = load(client, pickled(sender.payload(flattened=flattened)))
    check(client, shared_tree, reply, expected)
    references = sender.ask("references")["references"]
    assert references and not any(references), references


def test_P10_buckets_of_handles_in_a_session(client, sender, shared_tree, expected):  # noqa: F811
    names = [tensor["name"] for tensor in sender.ask("tensors")["tensors"]]
    session = client.begin_update(adapter=NAME, adapter_config=CONFIG)["session"]
    for part in range(3):
        client.update_bucket(pickled(sender.payload(only=names[part::3])), session=session)
    check(client, shared_tree, client.commit_weights(session=session), expected)
    assert not any(sender.ask("references")["references"])


def test_P10_a_part_of_an_adapter_leaves_its_other_tensors(client, sender, shared_tree, adapter, expected):  # noqa: F811
    client.update_weights(str(adapter), adapter=NAME)
    names = [tensor["name"] for tensor in sender.ask("tensors")["tensors"]]
    reply = client.update_weights(source=pickled(sender.payload(only=names[1::3])), adapter=NAME, partial=True)
    check(client, shared_tree, reply, expected)


def test_P2_a_refused_adapter_gives_its_references_back(client, sender):
    for config, what in ((config_of(r=1 << 14), "r"), (config_of(use_dora=True), "use_dora")):
        with pytest.raises(pitstop.PitstopError, match=what) as error:
            client.update_weights(source=pickled(sender.payload()), adapter=NAME, adapter_config=json.dumps(config))
        assert error.value.code in ("invalid_argument", "unsupported"), error.value
        references = sender.ask("references")["references"]
        assert references and not any(references), references


def test_P10_handles_of_vllm(client, sender, shared_tree, expected):  # noqa: F811
    uuid = uuid_of(shared_tree).removeprefix("GPU-")
    payload = base64.b64decode(sender.ask("handles_by_device", uuid=uuid)["payload"])
    infos = sender.ask("tensors")["tensors"]
    reply = load(client, {"kind": "tensors", "format": "vllm_ipc", "tensors": infos, "payloads": [{"data": payload}]})
    check(client, shared_tree, reply, expected)


def test_P10_buckets_of_checkpoint_engine(client, sender, shared_tree, expected):  # noqa: F811
    endpoint = f"ipc://@pitstop-test-{os.getpid()}-{next(Door.numbers)}.sock"
    sender.tell("serve", endpoint=endpoint)
    assert sender.answer()["bound"]
    reply = load(client, {"kind": "ipc", "handles": {uuid_of(shared_tree): endpoint}, "stall_ms": 20_000})
    assert sender.answer()["answers"] == [""] * 6
    check(client, shared_tree, reply, expected)


@pytest.mark.parametrize("format", ["each", "flattened"])
def test_P10_broadcasts_over_nccl(client, sender, shared_tree, adapter, expected, format):  # noqa: F811
    infos = sender.ask("tensors")["tensors"]
    names = [info["name"] for info in infos]
    trainer = nccl_trainer.Trainer(BUILD, adapter, 1)
    with trainer:
        group = {"backend": "nccl", "address": "127.0.0.1", "port": trainer.port, "world_size": 2}
        client.init_group("w", timeout=30, **group)
        trainer.ask("counted_in", world_size=2)
        trainer.ask("make_id")
        trainer.ask("publish", group="w")
        source = {"kind": "distributed", "group": "w", "tensors": infos, "format": format, "stall_ms": 60_000}
        update = in_thread(load, client, source)
        assert trainer.ask("join", world_size=2) == {}
        trainer.ask("broadcast", names=names, packs=[len(names)] if format == "flattened" else None)
        check(client, shared_tree, update(), expected)
        trainer.tell("leave")
        client.destroy_group("w")
        assert trainer.answer() == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_P10_an_engine_lends_the_tensors_of_its_gpu(client, shared_tree, adapter, expected, dtype):  # noqa: F811
    with Trainer(BUILD, shared_tree.run_dir, adapter, [uuid_of(shared_tree)]) as trainer:
        said = trainer.ask("load_adapter", name=NAME, config=CONFIG, dtype=dtype)
    assert said.get("digest") == expected[0] and said["num_to_host"] == said["num_copied"] == 0, said
    check(client, shared_tree, said, expected)
