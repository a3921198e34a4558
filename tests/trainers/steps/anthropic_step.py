"""Anthropic's client: samples, and drives the control routes through its own `post`, an update from a directory included.

Nothing is replaced. The template makes a message's text, and nothing else, into the prompt.
"""

import json
import sys

from anthropic import Anthropic

from weights import NUM_TOKENS, PROMPT


def main(url, other):
    client = Anthropic(base_url=url, api_key="any", max_retries=0)
    extra = {"temperature": 0, "chat_template": "{{ messages[0].content }}", "return_token_ids": True}

    def sample():
        answer = client.messages.create(
            model="stories", messages=[{"role": "user", "content": PROMPT}], max_tokens=NUM_TOKENS, extra_body=extra
        )
        return answer.model_extra["token_ids"]

    def post(route, **body):
        return client.post(route, cast_to=object, body=body)

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
