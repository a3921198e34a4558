"""Models whose numbers overflow, each in its own way: no token, score or page is made of them.

The bundled model with an untied head, and a change to one tensor. What a healthy model says beside a
request that ends is compared bit for bit with what it says alone.
"""

import json
import pathlib
import shutil
import struct

import numpy
import pytest

from process_tree import ROOT, live_tree
from places import short_directory
from http_client import Http

STORIES = ROOT / "launch/models/stories"
HUGE = 0x7F7F  # bf16's largest number, 3.39e38
BAD_TOKEN = 77
PROMPT = [5, 301, 17, 950, 42, 61, 8, 1200, 33, 7, 512, 90, 3, 14, 15, 92, 65, 35, 89, 79]
LENGTH = len(PROMPT)


def read_tensors():
    blob = (STORIES / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + size])
    header.pop("__metadata__", None)
    data = blob[8 + size :]
    tensors = {}
    for name, entry in header.items():
        raw = data[slice(*entry["data_offsets"])]
        tensors[name] = numpy.frombuffer(raw, numpy.uint16).reshape(entry["shape"]).copy()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    return tensors


def write_model(directory, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def bf16(value):
    return int(numpy.float32(value).view(numpy.uint32)) >> 16


def scaled(tensor, factor):
    """bf16 numbers times a power of two."""
    as_float = (tensor.astype(numpy.uint32) << 16).view(numpy.float32) * numpy.float32(factor)
    return (as_float.view(numpy.uint32) >> 16).astype(numpy.uint16)


LAYER = "model.layers.{}."


def all_of(name, value):
    return lambda tensors: tensors[name].fill(value)


def times(name, factor):
    def change(tensors):
        tensors[name] = scaled(tensors[name], factor)

    return change


def element(name, row, value):
    def change(tensors):
        tensors[name][row] = value

    return change


STATE, LOGITS = "hidden state", "logits"
# What is changed, and what a request is told: of its first token that is not finite if nobody wants
# its logits, and of the first whose logits are wanted.
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
    def __init__(self, tree, directory):
        self.tree = tree
        self.directory = directory
        self.http = Http(tree.url)
        self.door = tree.door()
        self.admin = tree.door("admin")
        self.num_versions = 0

    def serve(self, *changes, **spec):
        """The healthy model with changes; returns its epoch."""
        tensors = read_tensors()
        for change in changes:
            change(tensors)
        self.num_versions += 1
        path = self.directory / f"v{self.num_versions}"
        shutil.copytree(self.directory / "healthy", path)
        write_model(path, tensors)
        update = {"source": {"kind": "disk", "path": str(path)}, "allow_nonfinite": True, **spec}
        reply = self.admin.call("update_weights", update=update)
        shutil.rmtree(path)
        assert reply["ok"], reply
        return reply["epoch"]

    def ask(self, prompt=PROMPT, **fields):
        fields = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True, **fields}
        return self.door.generate(prompt, **fields)

    def ended(self):
        """Requests that ended so, by kind."""
        counts = self.admin.call("status")["replicas"][0]["not_finite"]
        return {count["kind"]: count["requests"] for count in counts}


@pytest.fixture(scope="module", params=(1, 2), ids=("tp1", "tp2"))
def server(request):
    with short_directory() as path:
        directory = pathlib.Path(path)
        shutil.copytree(STORIES, directory / "healthy")
        config = json.loads((STORIES / "config.json").read_text())
        (directory / "healthy/config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        write_model(directory / "healthy", read_tensors())
        flags = ("--model", directory / "healthy", "--tp", request.param, "--port", "0")
        with live_tree(directory / "tree", *flags, "--chunked-prefill-size", 16) as tree:
            yield Server(tree, directory)


def expect_error(output, what, token, epoch):
    assert output.finish["reason"] == "error", (output.finish, output.tokens, output.logprobs)
    assert output.finish["code"] == "not_finite", output.finish
    message = output.finish["message"]
    assert what in message and f"for {token}," in message, message
    assert f"under weight epoch {epoch}" in message and "in step " in message, message
    assert output.tokens == []


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


def expect_counted(server, kind, num, act):
    before = server.ended()
    act()
    assert server.ended()[kind] == before[kind] + num


@pytest.mark.parametrize("what", EVERYWHERE)
def test_a_layer_that_overflows_ends_every_request(server, what):
    epoch = server.serve(EVERYWHERE[what])
    for how, fields in SAMPLING.items():
        expect_error(server.ask(**fields), STATE, "prompt token 0", epoch)
    expect_error(server.ask(PROMPT[:1]), LOGITS, "output token 0", epoch)
    for fields in (SCORING, TOP, IDS):
        expect_error(server.ask(**fields), LOGITS, "prompt token 1", epoch)
    expect_error(server.ask(**SOME), STATE, "prompt token 0", epoch)


@pytest.mark.parametrize("what", AT_THE_HEAD)
def test_a_head_that_overflows_ends_every_request(server, what):
    epoch = server.serve(AT_THE_HEAD[what])
    for how, fields in SAMPLING.items():
        expect_error(server.ask(**fields), LOGITS, "output token 0", epoch)
    for fields in (SCORING, TOP, IDS):
        expect_error(server.ask(**fields), LOGITS, "prompt token 1", epoch)
    expect_error(server.ask(**SOME), LOGITS, "prompt token 18", epoch)


def huge_row(tensors):
    tensors["model.embed_tokens.weight"][BAD_TOKEN] = bf16(2.0**80)


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
    for round in range(3):  # pages of the first round's bad requests are written to again
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


def test_what_edits_and_temperature_make_infinite_is_told_apart(server):
    """Finite logits of 1e37, and a temperature that makes infinities of them."""
    epoch = server.serve(times("model.norm.weight", 2.0**121))
    assert server.ask().finish["reason"] == "length"
    for fields in ({"seed": 1}, {"seed": 1, "top_p": 0.5}, {"seed": 1, "logit_bias": {3: 1.0}}):
        expect_error(server.ask(temperature=0.01, **fields), "temperature", "output token 0", epoch)


def test_http_says_it_and_counts_it(server):
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
