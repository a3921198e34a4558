"""An adapter in SGLang's flattened bucket, over HTTP and in Python."""

import types

import numpy
import pytest

import pitstop
import torch_sender
from lora_files import config_of
from test_adapters import files, http, load, served  # noqa: F401  (fixtures)
from trainers import serialized


@pytest.mark.skipif(torch_sender.torch is None, reason=torch_sender.REASON)
def test_a_flattened_bucket_in_the_request_is_the_directorys_adapter(http, files, served):  # noqa: F811
    digest = load(http, "one", files["one"][0])["adapter_digest"]
    tensors = {name: torch_sender.torch.from_numpy(tensor.copy()) for name, tensor in files["one"][2].items()}
    with pitstop.Client(served.run_dir) as client:
        num_ranks = len(client.status()["replicas"][0]["workers"])
    buckets = [torch_sender.flattened_bucket(tensors) for _ in range(num_ranks)]
    body = {"lora_name": "sent", "config_dict": config_of(), "load_format": "flattened_bucket"}
    body["serialized_named_tensors"] = serialized([payload for payload, _ in buckets])
    answer = http.post("/load_lora_adapter_from_tensors", body)
    assert answer.status == 200 and answer.json["adapter_digest"] == digest, answer


def test_a_flattened_bucket_in_python_is_the_directorys_adapter(http, files, served):  # noqa: F811
    digest = load(http, "one", files["one"][0])["adapter_digest"]
    pieces, at = [], 0
    for name, tensor in files["one"][2].items():
        place = {"name": name, "start_idx": at, "end_idx": at + tensor.size}
        pieces.append(types.SimpleNamespace(**place, dtype=tensor.dtype, shape=tensor.shape))
        at += tensor.size
    flat = numpy.concatenate([tensor.reshape(-1) for tensor in files["one"][2].values()])
    bucket = {"flattened_tensor": flat, "metadata": pieces}
    with pitstop.Engine(run_dir=str(served.run_dir)) as engine:
        update = engine.load_lora_adapter_from_tensors("sent", bucket, config_of(), load_format="flattened_bucket")
        assert update.digest == digest
        with pytest.raises(pitstop.PitstopError, match="load_format must be None or flattened_bucket"):
            engine.load_lora_adapter_from_tensors("sent", bucket, config_of(), load_format="npcache")
