"""AReaL's RemoteSGLangEngine, as it is: a sample with its routes."""

import asyncio
import json
import sys
import tempfile

from areal.api import ModelRequest
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig
from areal.engine.sglang_remote import RemoteSGLangEngine
from areal.utils import name_resolve


def main(url, prompt, num_tokens, num_layers, per_token):
    name_resolve.reconfigure(NameResolveConfig(type="nfs", nfs_record_root=tempfile.mkdtemp()))
    engine = RemoteSGLangEngine(InferenceEngineConfig(
        backend="sglang:d1", experiment_name="e", trial_name="t", setup_timeout=30, request_timeout=60,
        max_concurrent_rollouts=4, consumer_batch_size=1, return_routed_experts=True,
    ))  # fmt: skip
    engine.initialize(addr=url.removeprefix("http://"), train_data_parallel_size=1)
    how = GenerationHyperparameters(max_new_tokens=num_tokens, greedy=True, ignore_eos=True)
    output = asyncio.run(engine.agenerate(ModelRequest(input_ids=prompt, gconfig=how)))
    rows = output.routed_experts.reshape(-1, num_layers, per_token)
    print(json.dumps({"tokens": prompt + output.output_tokens, "rows": rows.tolist()}))


main(sys.argv[1], json.loads(sys.argv[3]), *map(int, sys.argv[4:7]))
