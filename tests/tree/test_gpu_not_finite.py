"""Models whose numbers overflow, on the emulated GPU. Requests must end as they do on the CPU
(tests/http/test_not_finite.py).
"""

import pytest

from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from overflowing import BAD_TOKEN, HUGE, LOGITS, PROMPT, STATE, Model, all_of, element, expect_error, huge_row, times

pytestmark = needs_gpu

GREEDY = {"temperature": 0.0, "ignore_eos": True}
SCORING = {"max_new_tokens": 0, "logprobs": {"enabled": True, "prompt_start": 0, "top": 2, "ids": [3]}}
EVERYWHERE = {
    "an input norm": all_of("model.layers.2.input_layernorm.weight", HUGE),
    "keys": all_of("model.layers.3.self_attn.k_norm.weight", HUGE),
    "squares": times("model.layers.1.mlp.down_proj.weight", 2.0**80),
}
AT_THE_HEAD = {
    "squares at the end": times("model.layers.5.mlp.down_proj.weight", 2.0**80),
    "a row of the head": element("lm_head.weight", 1999, HUGE),
}


@pytest.mark.parametrize("tp", (1, 2))
def test_requests_with_numbers_that_are_not_finite_end_as_on_a_cpu(gpu, place, start_tree, tp):
    gpu()
    model = Model(place)
    flags = ("--model", model.healthy, "--tp", tp, "--chunked-prefill-size", 16)
    tree = start_tree(*CUDA, *flags, "--deterministic")
    door, admin = tree.door(), tree.door("admin")
    healthy = {"max_new_tokens": 4, "logprobs": {"enabled": True, "prompt_start": 0}, **GREEDY}

    epoch = model.update(admin, huge_row)
    prompt = [*PROMPT[:9], BAD_TOKEN, *PROMPT[9:]]
    alone = door.generate(PROMPT, **healthy)
    beside = [door.start(prompt, max_new_tokens=3, **GREEDY), door.start(prompt, **SCORING)]
    again = door.generate(PROMPT[::-1] + PROMPT[:1], **healthy)
    assert again.finish["reason"] == "length"
    sampled, scored = door.finish(beside)
    expect_error(sampled, STATE, "prompt token 9", epoch)
    expect_error(scored, LOGITS, "prompt token 10", epoch)
    admin.call("flush_cache")
    twin = door.generate(PROMPT, **healthy)  # on pages that a request with an overflow has written
    assert (twin.tokens, twin.logprobs) == (alone.tokens, alone.logprobs)

    for change in EVERYWHERE.values():
        epoch = model.update(admin, change)
        expect_error(door.generate(PROMPT, max_new_tokens=3, **GREEDY), STATE, "prompt token 0", epoch)
        expect_error(door.generate(PROMPT, **SCORING), LOGITS, "prompt token 1", epoch)
    for change in AT_THE_HEAD.values():
        epoch = model.update(admin, change)
        expect_error(door.generate(PROMPT, max_new_tokens=3, **GREEDY), LOGITS, "output token 0", epoch)
        expect_error(door.generate(PROMPT, **SCORING), LOGITS, "prompt token 1", epoch)
