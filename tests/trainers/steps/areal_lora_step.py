"""AReaL's RemoteSGLangEngine: adapters from directories, each version under a name of its own, the previous version
unloaded (lora_keep_versions).
"""

import asyncio
import json
import os
import sys
import tempfile
import time

from areal.api import ModelRequest, WeightUpdateMeta
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig
from areal.engine.sglang_remote import RemoteSGLangEngine
from areal.utils import name_resolve, names

from weights import NUM_TOKENS


def main(url, _other, prompt, *directories):
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
        use_lora=True,
        lora_name="policy",
    )
    engine = RemoteSGLangEngine(config)
    engine.initialize(addr=url.removeprefix("http://"), train_data_parallel_size=1)
    how = GenerationHyperparameters(max_new_tokens=NUM_TOKENS, greedy=True, lora_name="policy")

    def sample():
        request = ModelRequest(input_ids=json.loads(prompt), gconfig=how)
        return asyncio.run(engine.agenerate(request)).output_tokens

    def load(version, directory):
        name_resolve.add(names.update_weights_from_disk("e", "t", version), str(time.time()), replace=True)
        engine.set_version(version)
        engine.pause_generation()
        meta = WeightUpdateMeta(
            type="disk",
            path=directory,
            use_lora=True,
            lora_name="policy",
            lora_keep_versions=1,
            version=version,
            clear_checkpoint_after_load=False,
        )
        engine.update_weights_from_disk(meta).result(60)
        engine.continue_generation()

    said = {"steps": []}
    for version, directory in enumerate(directories):
        load(version, directory)
        said["steps"].append(sample())
    engine.destroy()
    print(json.dumps(said))


if __name__ == "__main__":  # guarded, as AReaL's calls run in processes that import this file
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # otherwise its threads would wait for rollouts that are never started
