"""TRL's client of async GRPO: publishes each policy under a name of its own, as _sync_weight_lora does, and unloads an old
policy while a request of it is open.

Replacements, by line:
"""

import concurrent.futures
import importlib.util
import json
import pathlib
import sys
import types

import requests

package = types.ModuleType("trl.experimental.async_grpo")  # shim: its own imports the trainer, which needs pyarrow
package.__path__ = [str(pathlib.Path(importlib.util.find_spec("trl").origin).parent / "experimental" / "async_grpo")]
sys.modules[package.__name__] = package

from trl.experimental.async_grpo.vllm_client import VLLMClient  # noqa: E402  (after the package)

from weights import NUM_TOKENS, PROMPT  # noqa: E402


def main(url, _other, *directories):
    client = VLLMClient(url)
    client.wait_for_server_ready(poll_interval_s=0.1)

    def sample(model, num_tokens=NUM_TOKENS, **more):
        # The rollout worker's request: its aiohttp session is a process of its own.
        body = {
            "model": model,
            "prompt": PROMPT,
            "temperature": 0.0,
            "max_tokens": num_tokens,
            "return_token_ids": True,
            **more,
        }
        reply = requests.post(f"{url}/v1/completions", json=body)
        reply.raise_for_status()
        return reply.json()["choices"][0]["token_ids"]

    said = {"base": sample("stories"), "steps": []}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        open_request = None
        for version, directory in enumerate(directories):
            client.pause()
            client.load_lora_adapter(f"trl-policy-v{version}", directory)
            client.resume()
            said["steps"].append(sample(f"trl-policy-v{version}"))
            if open_request is None:
                open_request = pool.submit(sample, "trl-policy-v0", 300, ignore_eos=True)
            else:
                client.unload_lora_adapter(f"trl-policy-v{version - 1}")
        said["open"] = len(open_request.result())
    said["base_after"] = sample("stories")
    said["models"] = [each["id"] for each in requests.get(f"{url}/v1/models").json()["data"]]
    print(json.dumps(said))


main(*sys.argv[1:])
