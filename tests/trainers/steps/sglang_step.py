"""SGLang's own MultiprocessingSerializer and FlattenedTensorBucket, posted as slime and verl post
them.

Nothing of SGLang is replaced. payloads.py has the replacements of a GPU.
"""

import json
import sys

import requests
from sglang.srt.utils import MultiprocessingSerializer
from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

import payloads  # shim: how tensors are shared on a CPU
from weights import NUM_TOKENS, PROMPT, chunks, load

KEPT = []  # lent memory must live until the end


def post(url, route, body=None):
    answer = requests.post(f"{url}{route}", json=body or {}, timeout=60)
    answer.raise_for_status()
    return answer.json() if answer.content and "json" in answer.headers.get("Content-Type", "") else None


def update(url, tensors, num_calls, is_flattened, version):
    for pairs in chunks(tensors, num_calls):
        KEPT.append(payloads.shared(pairs))
        value = KEPT[-1]
        if is_flattened:
            bucket = FlattenedTensorBucket(named_tensors=value)
            value = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
            KEPT.append(value)
        payload = MultiprocessingSerializer.serialize(value, output_str=True)
        answer = post(
            url,
            "/update_weights_from_tensor",
            {
                "serialized_named_tensors": [payload],
                "load_format": "flattened_bucket" if is_flattened else None,
                "flush_cache": False,
                "weight_version": version,
            },
        )
        assert answer["success"], answer


def main(url, other):
    tensors = load(other)

    def sample():
        params = {"max_new_tokens": NUM_TOKENS, "temperature": 0}
        return post(url, "/generate", {"text": PROMPT, "sampling_params": params})["output_ids"]

    said = {"before": sample()}
    post(url, "/pause_generation", {"mode": "retract"})
    post(url, "/flush_cache")
    update(url, tensors, 5, True, "step 1")
    post(url, "/continue_generation")
    said["after"] = sample()
    post(url, "/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    post(url, "/resume_memory_occupation", {"tags": ["weights"]})
    update(url, tensors, 3, False, "step 2")
    post(url, "/resume_memory_occupation", {"tags": ["kv_cache"]})
    said["colocated"] = sample()
    said["version"] = requests.get(f"{url}/get_weight_version", timeout=60).json()["weight_version"]
    print(json.dumps(said))


main(*sys.argv[1:3])
