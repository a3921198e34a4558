"""verl's AsyncHttpServerAdapter, its file unmodified (verl_adapter.py): the hybrid worker's cycle."""

import asyncio
import json
import sys

import payloads  # shim: how tensors are shared on a CPU
from verl_adapter import UpdateWeightsFromTensorReqInput, adapter_class
from weights import NUM_TOKENS, PROMPT, chunks, load


async def main(url, other):
    tensors = load(other)
    host, _, port = url.removeprefix("http://").rpartition(":")
    engine = adapter_class()(model_path="stories", host=host, port=int(port), launch_server=False)
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
