"""verl's SGLangHttpServer.generate, from its unmodified file, and the code of SGLang that it calls to
read routes.

verl has SGLang's engine in its own process. An HTTP client replaces it. The other imports of the
file, from SGLang, Ray and verl's trainer, are only names, because this method does not use them.
The replaced lines:
"""

import asyncio
import importlib.util
import json
import pathlib
import sys
import types

import httpx
from torch.nothing import Nothing  # shim: names alone


def load(package, *path, **stand_ins):
    """A file of an installed package, without the packages around it."""
    file = pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0], *path)
    for name in stand_ins.pop("modules"):
        module = types.ModuleType(name)
        module.__getattr__ = lambda each: Nothing  # shim: names alone
        module.__path__ = []
        sys.modules[name] = module
    for name, members in stand_ins.items():
        sys.modules[name.replace("__", ".")].__dict__.update(members)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Engine:
    """shim: SGLang's TokenizerManager, by HTTP."""

    def __init__(self, url):
        self._url = url

    async def generate_request(self, request, _):
        body = {name: value for name, value in vars(request).items() if value is not None}
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{self._url}/generate", json=body, timeout=60)
        yield answer.raise_for_status().json()


SGLANG = load(
    "sglang", "srt", "state_capturer", "routed_experts.py",
    modules=["sglang.srt", "sglang.srt.configs", "sglang.srt.configs.model_config", "sglang.srt.layers",
             "sglang.srt.layers.dp_attention", "sglang.srt.layers.moe", "sglang.srt.model_executor",
             "sglang.srt.model_executor.forward_batch_info", "sglang.srt.runtime_context", "sglang.srt.state_capturer",
             "sglang.srt.state_capturer.base"],
)  # fmt: skip
VERL = load(
    "verl", "workers", "rollout", "sglang_rollout", "async_sglang_server.py",
    modules=["sglang", "sglang.srt.entrypoints", "sglang.srt.entrypoints.engine", "sglang.srt.entrypoints.http_server",
             "sglang.srt.managers", "sglang.srt.managers.io_struct", "sglang.srt.managers.tokenizer_manager",
             "sglang.srt.layers.moe.routed_experts_capturer", "verl", "verl.plugin", "verl.plugin.platform", "verl.utils",
             "verl.utils.config", "verl.utils.device", "verl.utils.net_utils", "verl.utils.profiler", "verl.utils.tracking",
             "verl.workers", "verl.workers.config", "verl.workers.rollout", "verl.workers.rollout.replica",
             "verl.workers.rollout.sglang_rollout", "verl.workers.rollout.sglang_rollout.sglang_rollout",
             "verl.workers.rollout.sglang_rollout.utils", "verl.workers.rollout.utils"],
    sglang__srt__managers__io_struct={"GenerateReqInput": types.SimpleNamespace},  # shim: its fields
    sglang__srt__layers__moe__routed_experts_capturer={  # shim: its place before SGLang 0.5.23
        "extract_routed_experts_from_meta_info": SGLANG.extract_routed_experts_from_meta_info
    },
    verl__workers__rollout__replica={"TokenOutput": types.SimpleNamespace},  # shim: its fields
)  # fmt: skip


async def main(url, prompt, num_tokens, num_layers, per_token):
    config = types.SimpleNamespace(
        enable_rollout_routing_replay=True, skip_tokenizer_init=False, max_model_len=1024, mtp=None
    )
    hf_config = types.SimpleNamespace(num_hidden_layers=num_layers, num_experts_per_tok=per_token)
    server = types.SimpleNamespace(
        config=config, model_config=types.SimpleNamespace(hf_config=hf_config), tokenizer_manager=Engine(url),
        lora_as_adapter=False, global_steps=1, replica_rank=0, _disaggregation_role=None, _pd_decode_peers=[],
    )  # fmt: skip
    how = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "logprobs": True}
    generate = VERL.SGLangHttpServer.generate
    output = await generate(server, prompt_ids=prompt, sampling_params=how, request_id="r")
    assert len(output.log_probs) == num_tokens
    print(json.dumps({"tokens": prompt + output.token_ids, "rows": output.routed_experts.tolist()}))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[3]), *map(int, sys.argv[4:7])))
