"""verl's AsyncHttpServerAdapter, its file unmodified: a LoRA step as its rollout makes it (available_models, unload if
loaded, load from tensors), twice, with a request open."""

import asyncio
import dataclasses
import json
import pathlib
import sys

import payloads  # shim: how tensors are shared on a CPU
from verl_adapter import adapter_class
from weights import NUM_TOKENS, PROMPT, load_floats

NAME = "verl_actor_lora_name"


@dataclasses.dataclass
class LoadLoRAAdapterFromTensorsReqInput:
    lora_name: str
    config_dict: dict
    serialized_named_tensors: list


async def main(url, _other, *directories):
    host, _, port = url.removeprefix("http://").rpartition(":")
    engine = adapter_class()(model_path="stories", host=host, port=int(port), launch_server=False)

    async def sample(name, num_tokens=NUM_TOKENS, **more):
        params = {"max_new_tokens": num_tokens, "temperature": 0, **more}
        return (await engine.generate(prompt=PROMPT, sampling_params=params, lora_path=name))["output_ids"]

    async def update(directory):
        models = await engine.available_models()
        if any(item["id"] == NAME for item in models["data"]):
            await engine.unload_lora_adapter(NAME)
        tensors = dict(payloads.shared(load_floats(directory).items()))
        config = json.loads((pathlib.Path(directory) / "adapter_config.json").read_text())
        await engine.load_lora_adapter_from_tensor(
            LoadLoRAAdapterFromTensorsReqInput(NAME, config, [payloads.pickled(tensors)])
        )
        await engine.flush_cache()

    said = {"base": await sample(None), "steps": []}
    open_request = None
    for directory in directories:
        await update(directory)
        said["steps"].append(await sample(NAME))
        if open_request is None:
            open_request = asyncio.ensure_future(sample(NAME, 300, ignore_eos=True))
            await asyncio.sleep(0)
    said["open"] = len(await open_request)
    said["base_after"] = await sample(None)
    await engine.unload_lora_adapter(NAME)
    said["models"] = [item["id"] for item in (await engine.available_models())["data"]]
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:]))
