"""AReaL's RemoteSGLangEngine: samples, pauses, updates from a directory and by broadcasts, continues, samples.

Replacements of NCCL, by line:
"""

import asyncio
import json
import os
import sys
import tempfile
import time

from areal.api import ModelAllocation, ModelRequest, ParamSpec, WeightUpdateMeta
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig
from areal.engine.sglang_remote import RemoteSGLangEngine, SGLangBackend
from areal.utils import name_resolve, names

from host_group import HostBroadcast, as_bytes
from weights import NUM_TOKENS, chunks, load


class HostBackend(SGLangBackend):
    def build_init_weights_group_request(self, addr, server_idx, meta):
        request = super().build_init_weights_group_request(addr, server_idx, meta)
        request.payload["backend"] = "host"  # shim: in place of nccl (on a CPU AReaL says gloo)
        return request


def main(url, other, prompt):
    store = tempfile.mkdtemp()
    name_resolve.reconfigure(NameResolveConfig(type="nfs", nfs_record_root=store))
    config = InferenceEngineConfig(
        backend="sglang:d1",
        experiment_name="e",
        trial_name="t",
        setup_timeout=30,
        request_timeout=60,
        max_concurrent_rollouts=4,
        consumer_batch_size=1,
    )
    engine = RemoteSGLangEngine(config)
    engine._engine.backend = HostBackend()
    engine.initialize(addr=url.removeprefix("http://"), train_data_parallel_size=1)
    tensors = load(other)
    how = GenerationHyperparameters(max_new_tokens=NUM_TOKENS, greedy=True)

    def sample():
        request = ModelRequest(input_ids=json.loads(prompt), gconfig=how)
        return asyncio.run(engine.agenerate(request)).output_tokens

    def from_disk(version):
        name_resolve.add(names.update_weights_from_disk("e", "t", version), str(time.time()), replace=True)
        engine.set_version(version)
        engine.pause_generation()
        engine.update_weights_from_disk(
            WeightUpdateMeta(type="disk", path=str(other), clear_checkpoint_after_load=False)
        ).result(60)
        engine.continue_generation()

    def broadcast(group, meta, num_calls):
        for pairs in chunks(tensors, num_calls):
            specs = [ParamSpec(name, tuple(tensor.shape), "bfloat16") for name, tensor in pairs]
            call = engine.update_weights_from_distributed(meta, specs)
            for _, tensor in pairs:
                group.broadcast(as_bytes(tensor))
            call.result(60)

    said = {"before": sample()}
    from_disk(1)
    said["after"] = sample()
    with HostBroadcast("update_weight_group_0", num_workers=1) as group:
        meta = WeightUpdateMeta(
            type="xccl",
            gen_allocation=ModelAllocation.from_str("sglang:d1"),
            nccl_master_address=group.host,
            nccl_master_port=group.port,
            nccl_group_name="update_weight_group_0",
        )
        joined = engine.init_weights_update_group(meta)
        group.accept()
        joined.result(60)
        engine.offload()
        engine.onload(tags=["weights"])
        broadcast(group, meta, 4)
        engine.onload(tags=["kv_cache"])
        said["colocated"] = sample()
    engine.destroy()
    print(json.dumps(said))


if __name__ == "__main__":  # guarded, as AReaL's calls run in processes that import this file
    main(*sys.argv[1:4])
    sys.stdout.flush()
    os._exit(0)  # otherwise its threads would wait for rollouts that are never started
