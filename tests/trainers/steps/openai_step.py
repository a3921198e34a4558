"""OpenAI's client: samples, and drives the control routes through its own `post`, an update from a directory included.

Nothing is replaced.
"""

import json
import sys

from openai import OpenAI

from weights import NUM_TOKENS, PROMPT


def main(url, other):
    client = OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)

    def sample():
        answer = client.completions.create(
            model="stories", prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=0, extra_body={"return_token_ids": True}
        )
        return answer.choices[0].model_extra["token_ids"]

    def post(route, **body):
        return client.post(f"{url}{route}", cast_to=object, body=body)

    said = {"before": sample()}
    post("/pause_generation", mode="in_place")
    post("/update_weights_from_disk", model_path=other, weight_version="step 1")
    post("/continue_generation")
    said["after"] = sample()
    post("/release_memory_occupation", tags=["weights", "kv_cache"])
    post("/resume_memory_occupation")
    post("/update_weights_from_disk", model_path=other)
    said["colocated"] = sample()
    print(json.dumps(said))


main(*sys.argv[1:3])
