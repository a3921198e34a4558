"""lm-eval's LocalCompletionsAPI: log-likelihoods of continuations before and after an update,
compared with the engine's own.

Nothing is replaced.
"""

import json
import sys

import requests
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

PAIRS = [
    ("Once upon a time", ", there was a little girl"),
    ("ROMEO: I", " will not be gone"),
    ("One day,", " a dog ran"),
]


def main(url, other, tokenizer):
    model = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions",
        model="stories",
        tokenizer=tokenizer,
        tokenizer_backend="huggingface",
        num_concurrent=2,
        max_length=512,
    )

    def by_lm_eval():
        requests_ = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)]
        return [score for score, _ in model.loglikelihood(requests_)]

    def by_engine():
        """Sums of prompt logprobs, by SGLang's route."""
        sums = []
        for context, continuation in PAIRS:
            begin = len(model.tok_encode(context))
            body = {
                "input_ids": model.tok_encode(context + continuation),
                "return_logprob": True,
                "logprob_start_len": 0,
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            }
            answer = requests.post(f"{url}/generate", json=body, timeout=60).json()
            sums.append(sum(entry[0] for entry in answer["meta_info"]["input_token_logprobs"][begin:]))
        return sums

    said = {"lm_eval": [by_lm_eval()], "engine": [by_engine()]}
    requests.post(f"{url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()
    requests.post(f"{url}/update_weights_from_disk", json={"model_path": other}, timeout=60).raise_for_status()
    requests.post(f"{url}/continue_generation", json={}, timeout=60).raise_for_status()
    said["lm_eval"].append(by_lm_eval())
    said["engine"].append(by_engine())
    print(json.dumps(said))


main(*sys.argv[1:4])
