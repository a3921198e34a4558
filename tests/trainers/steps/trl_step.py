"""TRL's VLLMClient: samples, updates all parameters, samples; then once more around a sleep.

Replacements of what needs vLLM and a GPU, by line:
"""

import json
import sys

import requests
import torch
import trl.generation.vllm_client as trl_client

from host_group import HostBroadcast, as_bytes
from weights import NUM_TOKENS, PROMPT, load


class HostGroup:
    """Replaces PyNcclCommunicator and its store."""

    def __init__(self, info):
        self.group = HostBroadcast(
            "vllm_weight_transfer", info["world_size"] - 1, info["master_address"], info["master_port"]
        )
        self.group.accept()


def send_packed(iterator, group, src, post_iter_func):
    """Sends one broadcast, as vLLM's packing does if all tensors fit its buffer."""
    group.group.broadcast(torch.cat([torch.from_numpy(as_bytes(post_iter_func(item))) for item in iterator]).numpy())


trl_client.is_vllm_available = lambda *_, **__: True  # shim: vLLM is not installed
trl_client.get_ip = lambda: "127.0.0.1"  # shim: vLLM's
trl_client._HAS_STATEFUL_TRAINER_ENGINE = True  # shim: of vLLM 0.28
trl_client.open_trainer_endpoint = HostGroup  # shim: vLLM's, which opens NCCL
trl_client.packed_nccl_broadcast_producer = send_packed  # shim: vLLM's, which sends by NCCL


class Client(trl_client.VLLMClient):
    def _post(self, url, **options):
        if url.endswith("/init_weight_transfer_engine"):
            options["json"]["init_info"]["backend"] = "host"  # shim: in place of NCCL
        return super()._post(url, **options)


class Model(torch.nn.Module):
    """A trainer's model, with parameters under the checkpoint's names."""

    def __init__(self, directory):
        super().__init__()
        self._tensors = load(directory)

    def named_parameters(self, *_, **__):
        return ((name, torch.nn.Parameter(tensor)) for name, tensor in self._tensors.items())


def main(url, other):
    client = Client(base_url=url)

    def sample():
        return client.generate([PROMPT], n=1, temperature=0.0, max_tokens=NUM_TOKENS)["completion_ids"][0]

    said = {"before": sample()}
    client.init_communicator(device="cuda")
    client.update_model_params(Model(other))
    client.reset_prefix_cache()
    said["after"] = sample()
    requests.post(f"{url}/sleep?level=2").raise_for_status()
    requests.post(f"{url}/wake_up?tags=weights").raise_for_status()
    client.update_model_params(Model(other))
    requests.post(f"{url}/wake_up?tags=kv_cache").raise_for_status()
    said["colocated"] = sample()
    ids = client.generate([PROMPT], n=1, temperature=0.0, max_tokens=4)
    sequence = ids["prompt_ids"][0] + ids["completion_ids"][0]
    scored = client.get_sequence_logprobs([sequence], [len(ids["prompt_ids"][0])], top_logprobs=2)
    said["scores"] = len(scored["logprobs"][0])
    # A distillation's request: tokens far from the top, whose ranks are over the requested number.
    num_prompt = len(ids["prompt_ids"][0])
    scored = client.get_sequence_logprobs([sequence[:num_prompt] + [17, 1999, 31]], [num_prompt], top_logprobs=2)
    said["distilled"] = [[*best, *own] for best, own in zip(scored["logprobs"][0], scored["actual_logprobs"][0])]
    print(json.dumps(said))


main(*sys.argv[1:3])
