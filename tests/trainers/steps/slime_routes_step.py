"""slime's Sample reads the answers of two turns, as in its sglang_rollout.generate, and slime
checks the routes before it replays them.
"""

import json
import sys
import types

import httpx

sys.path.insert(0, sys.argv[7])

from slime.observability.rollout_data_utils import validate_rollout_routed_experts_for_replay
from slime.utils.types import Sample


def main(url, prompt, num_tokens, num_layers, per_token):
    args = types.SimpleNamespace(
        num_layers=num_layers, moe_router_topk=per_token, moe_layer_freq=[0] + [1] * (num_layers - 1)
    )
    sample = Sample(tokens=list(prompt))
    for turn in ([], [11, 12, 13]):  # the text of a tool between two turns
        if turn:
            sample.append_response_tokens(args, tokens=turn, trainable=False)
        body = {
            "input_ids": sample.tokens,
            "return_logprob": True,
            "return_routed_experts": True,
            "sampling_params": {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True},
        }
        if sample.rollout_routed_experts is not None:
            body["routed_experts_start_len"] = sample.rollout_routed_experts.shape[0]
        output = httpx.post(f"{url}/generate", json=body, timeout=60).raise_for_status().json()
        told = output["meta_info"]["output_token_logprobs"]
        sample.append_response_tokens(
            args, tokens=[item[1] for item in told], log_probs=[item[0] for item in told], meta_info=output["meta_info"],
            text=output["text"],
        )  # fmt: skip
    validate_rollout_routed_experts_for_replay([sample.rollout_routed_experts], args)
    print(json.dumps({"tokens": sample.tokens, "rows": sample.rollout_routed_experts.numpy().tolist()}))


main(sys.argv[1], json.loads(sys.argv[3]), *map(int, sys.argv[4:7]))
