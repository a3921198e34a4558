"""Bans and whole distributions: allowed_token_ids, bad_words, logit_bias, ranks and logprobs of the
whole vocabulary, on a live tree. NumPy computes the expected results here from whole
distributions.
"""

import numpy
import pytest

PROMPT = [740, 543, 258, 498]  # Once upon a time
SURPRISING = [740, 17, 1999, 258, 31, 498]


@pytest.fixture(scope="module")
def vocab_size(tree):
    with tree.door() as door:
        return door.hello["vocab_size"]


def complete(http, prompt=PROMPT, **body):
    body = {"prompt": list(prompt), "max_tokens": 6, "temperature": 0, "return_tokens_as_token_ids": True, **body}
    answer = http.post("/v1/completions", body)
    assert answer.status == 200, answer
    return answer.json["choices"][0]


def by_id(top, vocab_size):
    """[V] from {"token_id:7": -1.5}."""
    assert len(top) == vocab_size
    row = numpy.full(vocab_size, numpy.nan)
    for name, logprob in top.items():
        row[int(name.removeprefix("token_id:"))] = logprob
    return row


def distribution(http, tokens, vocab_size, **body):
    """The whole distribution of the token after these."""
    choice = complete(http, tokens, max_tokens=1, logprobs=-1, **body)
    return by_id(choice["logprobs"]["top_logprobs"][0], vocab_size)


def log_softmax(x):
    return x - numpy.log(numpy.sum(numpy.exp(x - x.max()))) - x.max()


def test_minus_one_is_the_whole_distribution(http, vocab_size):
    row = distribution(http, PROMPT, vocab_size)
    assert numpy.exp(row).sum() == pytest.approx(1, abs=1e-4)
    few = complete(http, max_tokens=1, logprobs=5)["logprobs"]["top_logprobs"][0]
    best = numpy.argsort(-row, kind="stable")[:5]
    assert few == {f"token_id:{token}": pytest.approx(row[token], abs=1e-6) for token in best}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logprobs": True, "top_logprobs": -1}
    for entry in http.post("/v1/chat/completions", chat).json["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == vocab_size


def test_the_ranks_of_a_prompt_are_among_the_whole_vocabulary(http, vocab_size):
    alone = complete(http, SURPRISING, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"]
    whole = complete(http, SURPRISING, max_tokens=1, prompt_logprobs=-1)["prompt_logprobs"]
    assert alone[0] is None and whole[0] is None
    ranks = []
    for token, one, every in zip(SURPRISING[1:], alone[1:], whole[1:]):
        row = numpy.array([every[str(i)]["logprob"] for i in range(vocab_size)])
        above = row > row[token]
        equal_below = row[:token] == row[token]
        assert list(one) == [str(token)]
        assert one[str(token)]["rank"] == every[str(token)]["rank"] == 1 + above.sum() + equal_below.sum()
        order = sorted(range(vocab_size), key=lambda i: every[str(i)]["rank"])
        assert (numpy.diff(row[order]) <= 0).all()
        ranks.append(one[str(token)]["rank"])
    assert max(ranks) > 300, "a rank that no list of top tokens has"


def test_the_rank_of_a_drawn_token_is_its_place(http, vocab_size):
    sampling = {"max_tokens": 30, "temperature": 2.5, "seed": 5, "logprobs": 0}

    def content(**more):
        body = {"token_ids": PROMPT, "sampling_params": {**sampling, **more}}
        return http.post("/inference/v1/generate", body).json["choices"][0]["logprobs"]["content"]

    drawn = content()
    assert max(entry["rank"] for entry in drawn) > 20
    for one, every in zip(drawn, content(logprobs=-1)):
        order = {top["token_id"]: top["rank"] for top in every["top_logprobs"]}
        assert sorted(order.values()) == list(range(1, vocab_size + 1))
        assert one["token_id"] == every["token_id"] and one["rank"] == order[one["token_id"]]


def test_only_allowed_tokens_come(http, vocab_size):
    allowed = [31, 17, 258, 1999, 740]
    raw = distribution(http, PROMPT, vocab_size)
    greedy = complete(http, allowed_token_ids=allowed, return_token_ids=True, ignore_eos=True)
    assert greedy["token_ids"][0] == max(allowed, key=lambda token: raw[token])
    assert set(greedy["token_ids"]) <= set(allowed)
    drawn = complete(http, allowed_token_ids=allowed, return_token_ids=True, temperature=1, seed=3, max_tokens=60)
    assert set(drawn["token_ids"]) <= set(allowed) and len(set(drawn["token_ids"])) > 1
    scaled = distribution(http, PROMPT, vocab_size, allowed_token_ids=allowed, logprobs_mode="scaled")
    numpy.testing.assert_allclose(scaled[allowed], log_softmax(raw[allowed]), atol=1e-4)
    assert (numpy.delete(scaled, allowed) == -9999).all()


def bad_sequences(http, words):
    """Source: vLLM's SamplingParams.update_from_tokenizer."""
    sequences = []
    for word in words:
        for prefix in ("", " "):
            body = {"prompt": prefix + word.lstrip(), "add_special_tokens": False}
            tokens = http.post("/tokenize", body).json["tokens"]
            if not prefix or (tokens[0] != sequences[-1][0] and len(tokens) == len(sequences[-1])):
                sequences.append(tokens)
    return sequences


def without(http, sequences, num_tokens, vocab_size):
    """Computes the banned output here, greedily, a token at a time. Source: vLLM's apply_bad_words."""
    output = []
    for _ in range(num_tokens):
        row = distribution(http, PROMPT + output, vocab_size)
        for *before, last in sequences:
            if len(before) <= len(output) and output[len(output) - len(before) :] == before:
                row[last] = -numpy.inf
        output.append(int(row.argmax()))
    return output


def test_bad_words_do_not_come(http, vocab_size):
    """Bans words of one and of several tokens from the output. A word that has another number of tokens after a space
    is banned only at a text's start, as in vLLM, so the test uses none."""
    free = complete(http, max_tokens=12, return_token_ids=True, ignore_eos=True)
    found = {}
    for num in (1, 2, 3):
        for at in range(12 - num + 1):
            text = http.post("/detokenize", {"tokens": free["token_ids"][at : at + num]}).json["prompt"]
            for sequence in bad_sequences(http, [text]) if text.strip() else []:
                if any(free["token_ids"][i : i + len(sequence)] == sequence for i in range(12)):
                    found.setdefault(len(sequence), text)
    assert len(found) > 1 and max(found) > 1, found
    words = [found[min(found)], found[max(found)]]
    sequences = bad_sequences(http, words)
    expected = without(http, sequences, 12, vocab_size)
    assert expected != free["token_ids"]
    body = {"max_tokens": 12, "bad_words": words, "ignore_eos": True}
    assert complete(http, **body, return_token_ids=True)["token_ids"] == expected
    native = {"max_new_tokens": 12, "temperature": 0, "bad_words": words, "ignore_eos": True}
    text = http.post("/detokenize", {"tokens": PROMPT}).json["prompt"]
    for prompt in ({"input_ids": PROMPT}, {"text": text}):
        answer = http.post("/generate", {**prompt, "sampling_params": native})
        assert answer.json["output_ids"] == expected
    body = {"token_ids": PROMPT, "sampling_params": {**body, "temperature": 0}}
    assert http.post("/inference/v1/generate", body).json["choices"][0]["token_ids"] == expected


def test_a_bias_may_be_of_any_size_and_for_every_token(http, vocab_size):
    bias = {str(token): -1e30 for token in range(vocab_size)} | {"17": 3.5e300}
    sampling = {"max_new_tokens": 4, "temperature": 0.5, "logit_bias": bias, "ignore_eos": True}
    answer = http.post("/generate", {"input_ids": PROMPT, "sampling_params": sampling})
    assert answer.status == 200 and answer.json["output_ids"] == [17] * 4
    bias = {str(token): -100 for token in range(vocab_size)} | {"17": 100}
    assert complete(http, max_tokens=3, logit_bias=bias, return_token_ids=True)["token_ids"] == [17] * 3


# For each route: where its sampling fields are, and a body for the remaining fields.
DIALECTS = {
    "/v1/completions": (None, {"prompt": PROMPT, "max_tokens": 3}),
    "/v1/chat/completions": (None, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}),
    "/v1/responses": (None, {"input": "Hi", "max_output_tokens": 3}),
    "/v1/messages": (None, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}),
    "/generate": ("sampling_params", {"input_ids": PROMPT}),
    "/inference/v1/generate": ("sampling_params", {"token_ids": PROMPT}),
}


def body_by(path, **fields):
    inside, body = DIALECTS[path]
    return {**body, inside: fields} if inside else {**body, **fields}


REFUSED_BANS = {
    "no token allowed": ({"allowed_token_ids": []}, "allowed_token_ids"),
    "no token but null allowed": ({"allowed_token_ids": [None]}, "allowed_token_ids"),
    "an allowed token past the vocabulary": ({"allowed_token_ids": [5, 99999]}, "allowed_token_ids[1] is token 99999"),
    "an allowed token below it": ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    "a word for allowed tokens": ({"allowed_token_ids": ["a"]}, "allowed_token_ids"),
    "half a token": ({"allowed_token_ids": [1.5]}, "allowed_token_ids"),
    "one token for a list": ({"allowed_token_ids": 5}, "allowed_token_ids"),
    "an empty bad word": ({"bad_words": ["no", ""]}, "bad_words"),
    "a bad word of spaces": ({"bad_words": ["  "]}, "bad_words"),
    "a bad word that is a number": ({"bad_words": [7]}, "bad_words"),
    "more bad words than are taken": ({"bad_words": ["a"] * 1025}, "bad_words has 1025"),
    "a bad word that is long": ({"bad_words": ["a" * 1025]}, "bad_words has a word of 1025 bytes"),
    "a bias of a token that is none": ({"logit_bias": {"99999": 1}}, "logit_bias names token 99999"),
    "a bias of a token below all": ({"logit_bias": {"-1": 1}}, "logit_bias names token -1"),
    "a bias of a word": ({"logit_bias": {"no": 1}}, "logit_bias"),
    "a bias that is a list": ({"logit_bias": [1]}, "logit_bias"),
    "a bias that is infinite": ({"logit_bias": {"5": "inf"}}, "logit_bias"),
    "a bias that is no number": ({"logit_bias": {"5": "nan"}}, "logit_bias"),
}


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("name", REFUSED_BANS)
def test_a_ban_that_is_none_is_refused_by_its_name(http, path, name):
    fields, named = REFUSED_BANS[name]
    refused = http.post(path, body_by(path, **fields))
    assert refused.status == 400 and named in refused.message, refused
    taken = {"allowed_token_ids": [5, 7], "bad_words": ["no"], "logit_bias": {"5": 1.5}}
    assert http.post(path, body_by(path, **taken)).status == 200


@pytest.mark.parametrize("path", DIALECTS)
def test_biases_past_openais_bound_are_refused_where_openai_has_them(http, path):
    answer = http.post(path, body_by(path, logit_bias={"5": 101}))
    if path in ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate"):
        assert answer.status == 400 and "logit_bias" in answer.message, answer
    else:
        assert answer.status == 200, answer


REFUSED_LOGPROBS = (
    ("/v1/completions", {"logprobs": -2}, "logprobs"),
    ("/v1/completions", {"logprobs": 5000}, "logprobs"),
    ("/v1/completions", {"prompt_logprobs": -2}, "prompt_logprobs"),
    ("/v1/completions", {"prompt_logprobs": 5000}, "logprobs"),
    ("/v1/completions", {"stream": True, "prompt_logprobs": -1}, "prompt_logprobs"),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 5000}, "logprobs"),
    ("/v1/chat/completions", {"stream": True, "prompt_logprobs": -1}, "prompt_logprobs"),
    ("/v1/responses", {"include": ["message.output_text.logprobs"], "top_logprobs": -2}, "top_logprobs"),
    ("/v1/responses", {"include": ["message.output_text.logprobs"], "top_logprobs": 5000}, "logprobs"),
    ("/inference/v1/generate", {"logprobs": -2}, "logprobs"),
    ("/inference/v1/generate", {"logprobs": 5000}, "logprobs"),
    ("/inference/v1/generate", {"prompt_logprobs": -2}, "prompt_logprobs"),
)


@pytest.mark.parametrize("path, fields, named", REFUSED_LOGPROBS)
def test_logprobs_past_the_whole_vocabulary_are_refused_by_name(http, path, fields, named):
    refused = http.post(path, body_by(path, **fields))
    assert refused.status == 400 and named in refused.message, refused


@pytest.mark.parametrize("num", (-1, 5000))
def test_logprobs_past_the_whole_vocabulary_are_refused_by_sglangs_route(http, num):
    body = {**body_by("/generate"), "return_logprob": True, "top_logprobs_num": num}
    refused = http.post("/generate", body)
    assert refused.status == 400 and "logprobs" in refused.message, refused


@pytest.mark.parametrize("name, value", (("allowed_token_ids", [5]), ("bad_words", ["no"])))
def test_bans_beside_the_sampling_parameters_are_refused_there(http, name, value):
    for path, body in (
        ("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}}),
        ("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": {"max_tokens": 2}}),
    ):
        refused = http.post(path, {**body, name: value})
        assert refused.status == 400 and name in refused.message, refused
        assert http.post(path, {**body, name: None}).status == 200


def test_bans_that_leave_no_token_end_the_request_with_an_error_of_its_own(http, door):
    (eos, *_) = door.hello["eos_ids"]
    body = {"prompt": PROMPT, "max_tokens": 3, "min_tokens": 1, "allowed_token_ids": [eos]}
    refused = http.post("/v1/completions", body)
    assert refused.status == 400 and "has no allowed token" in refused.message, refused
    assert complete(http, allowed_token_ids=[eos])["finish_reason"] == "stop"
