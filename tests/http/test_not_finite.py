"""Models whose numbers overflow, each in another way: no token, score or page of such numbers is used.

The model is the bundled one with an untied head, and a change to one tensor. Healthy requests next to one that ends
must give the same bits as alone.
"""

import pytest

from http_client import Http
from overflowing import (
    BAD_TOKEN,
    HUGE,
    LENGTH,
    LOGITS,
    PROMPT,
    STATE,
    Model,
    all_of,
    element,
    expect_error,
    huge_row,
    times,
)
from places import short_directory
from process_tree import live_tree

# Tensor changes that make a token's state overflow; below, those that make only its logits overflow.
EVERYWHERE = {
    "an input norm that overflows": all_of("model.layers.2.input_layernorm.weight", HUGE),
    "a post norm that overflows": all_of("model.layers.1.post_attention_layernorm.weight", HUGE),
    "keys that overflow": all_of("model.layers.3.self_attn.k_norm.weight", HUGE),
    "queries that overflow": all_of("model.layers.3.self_attn.q_norm.weight", HUGE),
    "values that overflow": all_of("model.layers.0.self_attn.v_proj.weight", HUGE),
    "a gate that overflows": all_of("model.layers.0.mlp.gate_proj.weight", HUGE),
    "a product that overflows": times("model.layers.0.mlp.down_proj.weight", 2.0**124),
    "squares that overflow, of the attention": times("model.layers.1.self_attn.o_proj.weight", 2.0**80),
    "squares that overflow, of the MLP": times("model.layers.1.mlp.down_proj.weight", 2.0**80),
    "squares of embeddings that overflow": times("model.embed_tokens.weight", 2.0**80),
    "a NaN of a layer": element("model.layers.4.mlp.up_proj.weight", 3, 0x7FC0),
}
AT_THE_HEAD = {
    "a final norm that overflows": all_of("model.norm.weight", HUGE),
    "squares that overflow, at the end": times("model.layers.5.mlp.down_proj.weight", 2.0**80),
    "a row of the head that overflows": element("lm_head.weight", 1999, HUGE),
    "an infinity of the head": element("lm_head.weight", 3, 0xFF80),
    "a NaN of the head": element("lm_head.weight", 3, 0x7FC0),
}


class Server:
    def __init__(self, tree, model):
        self.tree = tree
        self.model = model
        self.http = Http(tree.url)
        self.door = tree.door()
        self.admin = tree.door("admin")

    def serve(self, *changes):
        return self.model.update(self.admin, *changes)

    def ask(self, prompt=PROMPT, **fields):
        fields = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True, **fields}
        return self.door.generate(prompt, **fields)

    def ended(self):
        """Requests that ended with not_finite, by kind."""
        counts = self.admin.call("status")["replicas"][0]["not_finite"]
        return {count["kind"]: count["requests"] for count in counts}


@pytest.fixture(scope="module", params=(1, 2), ids=("tp1", "tp2"))
def server(request):
    with short_directory() as path:
        model = Model(path)
        flags = ("--model", model.healthy, "--tp", request.param, "--port", "0")
        with live_tree(model.directory / "tree", *flags, "--chunked-prefill-size", 16) as tree:
            yield Server(tree, model)


SCORING = {"max_new_tokens": 0, "logprobs": {"enabled": True, "prompt_start": 0}}
TOP = {"max_new_tokens": 0, "logprobs": {"enabled": True, "prompt_start": 0, "top": 2}}
IDS = {"max_new_tokens": 0, "logprobs": {"enabled": True, "prompt_start": 0, "ids": [3, 1999]}}
SOME = {"max_new_tokens": 2, "logprobs": {"enabled": True, "prompt_start": 18, "top": 1}}
SAMPLING = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "truncated": {"temperature": 1.0, "seed": 3, "top_p": 0.9, "top_k": 50},
    "with logprobs": {"logprobs": {"enabled": True, "top": 2, "ids": [5]}},
    "biased": {"logit_bias": {9: 1.0}, "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("what", EVERYWHERE)
def test_a_layer_that_overflows_ends_every_request(server, what):
    epoch = server.serve(EVERYWHERE[what])
    for fields in SAMPLING.values():
        expect_error(server.ask(**fields), STATE, "prompt token 0", epoch)
    expect_error(server.ask(PROMPT[:1]), LOGITS, "output token 0", epoch)
    for fields in (SCORING, TOP, IDS):
        expect_error(server.ask(**fields), LOGITS, "prompt token 1", epoch)
    expect_error(server.ask(**SOME), STATE, "prompt token 0", epoch)


@pytest.mark.parametrize("what", AT_THE_HEAD)
def test_a_head_that_overflows_ends_every_request(server, what):
    epoch = server.serve(AT_THE_HEAD[what])
    for fields in SAMPLING.values():
        expect_error(server.ask(**fields), LOGITS, "output token 0", epoch)
    for fields in (SCORING, TOP, IDS):
        expect_error(server.ask(**fields), LOGITS, "prompt token 1", epoch)
    expect_error(server.ask(**SOME), LOGITS, "prompt token 18", epoch)


@pytest.mark.parametrize("place", (0, 1, 15, 16, 18, 19))
def test_one_token_that_overflows_is_named_wherever_the_prompt_is_cut(server, place):
    epoch = server.serve(huge_row)
    prompt = [*PROMPT[:place], BAD_TOKEN, *PROMPT[place + 1 :]]
    after = "output token 0" if place + 1 == LENGTH else f"prompt token {place + 1}"
    where = (LOGITS, after) if place + 1 == LENGTH else (STATE, f"prompt token {place}")
    for fields in SAMPLING.values():
        expect_error(server.ask(prompt, **fields), *where, epoch)
    for fields in (SCORING, TOP, IDS):
        expect_error(server.ask(prompt, **fields), LOGITS, after, epoch)


def numbers_of(output):
    return [(c.get("tokens"), c.get("logprobs"), c.get("top_logprobs"), c.get("prompt")) for c in output.chunks]


def test_P6_neighbours_of_a_request_that_ends_have_the_bits_that_they_have_alone(server):
    server.serve(huge_row)
    healthy = {
        "max_new_tokens": 24,
        "stream": False,
        "logprobs": {"enabled": True, "top": 3, "prompt_start": 0},
        "temperature": 1.0,
        "ignore_eos": True,
    }
    prompts = [[(31 * i + 7 * j) % 70 for j in range(1, 30)] for i in range(4)]
    alone = [server.ask(p, seed=i, **healthy) for i, p in enumerate(prompts)]
    bad = [*PROMPT[:9], BAD_TOKEN, *PROMPT[9:]]
    for _ in range(3):  # later rounds write pages of the first round's failed requests again
        rids = []
        for i, prompt in enumerate(prompts):
            rids.append(server.door.start(prompt, seed=i, **healthy))
            fields = SCORING if i % 2 else {"max_new_tokens": 9}
            server.door.start([i, *bad], temperature=0.0, **fields)
        outputs = server.door.finish(list(server.door.outputs))
        assert [o.finish["reason"] for o in outputs].count("error") >= 4
        for got, want in zip(server.door.finish(rids), alone):
            assert numbers_of(got) == numbers_of(want)
        server.admin.call("flush_cache")


def test_P9_no_page_of_such_a_pass_is_shared(server):
    epoch = server.serve(huge_row)
    prompt = [*range(100, 160), BAD_TOKEN, *range(200, 300)]
    expect_error(server.ask(prompt), STATE, "prompt token 60", epoch)
    expect_error(server.ask(prompt, kv_tolerance="keep"), STATE, "prompt token 60", epoch)
    server.serve()
    output = server.ask(prompt, kv_tolerance="keep")
    assert output.finish["reason"] == "length", output.finish
    assert 0 < output.counts["cached_tokens"] <= 60, "the pages before the token are as good as any"


def test_an_infinity_made_by_temperature_or_edits_has_its_own_error(server):
    """Finite logits of 1e37, and a temperature that turns them into infinities."""
    epoch = server.serve(times("model.norm.weight", 2.0**121))
    assert server.ask().finish["reason"] == "length"
    for fields in ({"seed": 1}, {"seed": 1, "top_p": 0.5}, {"seed": 1, "logit_bias": {3: 1.0}}):
        expect_error(server.ask(temperature=0.01, **fields), "temperature", "output token 0", epoch)


def test_http_reports_and_counts_requests_that_are_not_finite(server):
    epoch = server.serve(huge_row)
    prompt = [*PROMPT[:9], BAD_TOKEN, *PROMPT[9:]]
    before = server.ended()
    for sampling in ({"max_new_tokens": 0}, {"max_new_tokens": 3, "temperature": 0}):
        body = {
            "input_ids": prompt,
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "token_ids_logprob": [3, 4],
        }
        answer = server.http.post("/generate", body)
        assert answer.status == 500, answer
        assert "the logits were not finite for prompt token 10" in answer.message, answer
    body = {"model": server.http.get("/v1/models").json["data"][0]["id"], "prompt": prompt, "max_tokens": 3}
    answer = server.http.post("/v1/completions", {**body, "logprobs": 2, "echo": True})
    assert answer.status == 500 and f"under weight epoch {epoch}" in answer.message, answer
    answer = server.http.post("/v1/completions", body)
    assert answer.status == 500 and "the hidden state was not finite for prompt token 9" in answer.message
    now = server.ended()
    assert (now["logits"] - before["logits"], now["state"] - before["state"]) == (3, 1)
    text = server.http.get("/metrics").body.decode()
    for kind in ("state", "logits", "scores"):
        line = f'pitstop_not_finite_requests_total{{replica="0",kind="{kind}"}} {now[kind]}'
        assert line in text, text
    assert "such requests since the last line" in server.tree.log()
