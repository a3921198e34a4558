"""verl's AsyncHttpServerAdapter, its file unmodified: the hybrid worker's cycle.

Replacements of SGLang's launcher, which the adapter imports and does not use here, by line:
"""

import asyncio
import dataclasses
import importlib.util
import json
import pathlib
import sys
import types

import payloads  # shim: how tensors are shared on a CPU
from weights import NUM_TOKENS, PROMPT, chunks, load


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    host: str = ""
    port: int = 0
    node_rank: int = 0
    trust_remote_code: bool = False


@dataclasses.dataclass
class UpdateWeightsFromTensorReqInput:
    serialized_named_tensors: list
    load_format: str = None
    flush_cache: bool = True


for package in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.managers"):
    stand_in(package)  # shim: SGLang is not installed
stand_in("sglang.srt.entrypoints.EngineBase", EngineBase=object)  # shim
stand_in("sglang.srt.entrypoints.http_server", launch_server=None)  # shim
stand_in("sglang.srt.managers.io_struct", UpdateWeightsFromTensorReqInput=UpdateWeightsFromTensorReqInput)  # shim
stand_in("sglang.srt.server_args", ServerArgs=ServerArgs)  # shim
stand_in("sglang.srt.utils", kill_process_tree=None)  # shim

verl = importlib.util.find_spec("verl").submodule_search_locations[0]
path = pathlib.Path(verl, "workers", "rollout", "sglang_rollout", "http_server_engine.py")
spec = importlib.util.spec_from_file_location("http_server_engine", path)  # its package imports all of SGLang
adapters = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adapters)


async def main(url, other):
    tensors = load(other)
    host, _, port = url.removeprefix("http://").rpartition(":")
    engine = adapters.AsyncHttpServerAdapter(model_path="stories", host=host, port=int(port), launch_server=False)
    kept = []

    async def sample(**more):
        params = {"max_new_tokens": NUM_TOKENS, "temperature": 0, **more}
        return (await engine.generate(prompt=PROMPT, sampling_params=params))["output_ids"]

    async def update(num_calls):
        for pairs in chunks(tensors, num_calls):
            kept.append(payloads.shared(pairs))
            request = UpdateWeightsFromTensorReqInput([payloads.pickled(kept[-1])], flush_cache=False)
            await engine.update_weights_from_tensor(request)

    said = {"before": await sample()}
    long = asyncio.ensure_future(sample(max_new_tokens=400, ignore_eos=True))
    await asyncio.sleep(0)
    await engine.abort_request(abort_all=True)
    await long
    await update(1)
    await engine.flush_cache()
    said["after"] = await sample()
    await engine.release_memory_occupation(tags=["kv_cache", "weights"])
    await engine.resume_memory_occupation(tags=["weights"])
    await update(4)
    await engine.resume_memory_occupation(tags=["kv_cache"])
    await engine.flush_cache()
    said["colocated"] = await sample()
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:3]))
