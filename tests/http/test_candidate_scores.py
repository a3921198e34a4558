"""vLLM's prompt_logprob_token_ids: the log-probabilities of candidates that the caller names for each prompt token, as a
matrix. What they must be comes from prompt_logprobs of the whole vocabulary.
"""

import base64
import io

import numpy
import pytest

PATH = "/inference/v1/generate"
PROMPT = list(range(300, 340))
LEFT_OUT = -1  # no candidate


def ask(http, path=PATH, prompt=PROMPT, sampling=None, **fields):
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 1, "temperature": 0, **sampling}, **fields}
    return http.post(path, body)


def matrix_of(answer):
    assert answer.status == 200, answer
    return numpy.load(io.BytesIO(base64.b64decode(answer.json["prompt_token_id_logprobs"])))


def candidates_of(num_rows, width):
    return [[(7 * row + 31 * k + 3) % 2000 for k in range(width)] for row in range(num_rows)]


@pytest.fixture
def whole(http):
    """Each prompt token's log-probabilities, by id."""
    answer = ask(http, sampling={"prompt_logprobs": -1})
    assert answer.status == 200 and answer.json["prompt_token_id_logprobs"] is None, answer
    shown = answer.json["prompt_logprobs"]
    return [None] + [{int(token): entry["logprob"] for token, entry in position.items()} for position in shown[1:]]


@pytest.mark.parametrize("path", (PATH, "/skyrl/v1/generate"))
@pytest.mark.parametrize("start", (0, 5, 38, 39))
def test_a_row_scores_the_token_after_its_position(http, whole, path, start):
    rows = candidates_of(len(PROMPT) - 1 - start, 3)
    got = matrix_of(
        ask(http, path, sampling={"prompt_logprob_token_ids": rows, "prompt_logprob_start": start, "max_tokens": 2})
    )
    assert got.dtype == numpy.float32 and got.shape == (len(rows), 3 if rows else 0)
    wanted = [[whole[start + i + 1][token] for token in row] for i, row in enumerate(rows)]
    assert got.tolist() == numpy.array(wanted, numpy.float32).reshape(got.shape).tolist()


def test_rows_may_have_gaps_and_differ_in_length(http, whole):
    rows = candidates_of(len(PROMPT) - 1, 4)
    rows[0], rows[1], rows[2] = [], [LEFT_OUT, 7, LEFT_OUT], [9]
    got = matrix_of(ask(http, sampling={"prompt_logprob_token_ids": rows}))
    assert got.shape == (len(rows), 4)
    for i, row in enumerate(rows):
        for k in range(4):
            token = row[k] if k < len(row) else LEFT_OUT
            wanted = -numpy.inf if token == LEFT_OUT else numpy.float32(whole[i + 1][token])
            assert got[i][k] == wanted, (i, k)


def test_other_logprobs_stay_as_they_are(http):
    """The logprobs of the prompt, of the output, and of the ids in logprob_token_ids."""
    besides = {"prompt_logprobs": 2, "logprobs": 1, "logprob_token_ids": [5, 6, 7], "max_tokens": 4}
    plain = ask(http, sampling=besides).json
    rows = candidates_of(len(PROMPT) - 1 - 30, 2)
    scored = ask(http, sampling={**besides, "prompt_logprob_token_ids": rows, "prompt_logprob_start": 30})
    alone = matrix_of(ask(http, sampling={"prompt_logprob_token_ids": rows, "prompt_logprob_start": 30}))
    assert matrix_of(scored).tolist() == alone.tolist()
    assert scored.json["prompt_logprobs"] == plain["prompt_logprobs"]
    assert scored.json["choices"][0]["logprobs"] == plain["choices"][0]["logprobs"]


def test_samples_share_one_prompt(http):
    rows = candidates_of(len(PROMPT) - 1, 2)
    alone = matrix_of(ask(http, sampling={"prompt_logprob_token_ids": rows}))
    many = matrix_of(ask(http, sampling={"prompt_logprob_token_ids": rows, "n": 3, "temperature": 1.0, "seed": 1}))
    assert many.tolist() == alone.tolist()


REFUSED = {
    "a row too few": ({"prompt_logprob_token_ids": [[1]] * 38}, {}, "39 lists"),
    "a number": ({"prompt_logprob_token_ids": 5}, {}, "prompt_logprob_token_ids"),
    "a flat list": ({"prompt_logprob_token_ids": [5] * 39}, {}, "prompt_logprob_token_ids"),
    "below -1": ({"prompt_logprob_token_ids": [[-2]] * 39}, {}, "prompt_logprob_token_ids"),
    "no token": ({"prompt_logprob_token_ids": [[99999]] * 39}, {}, "99999"),
    "a start behind": ({"prompt_logprob_token_ids": [], "prompt_logprob_start": 40}, {}, "prompt_logprob_start"),
    "a start before": ({"prompt_logprob_token_ids": [], "prompt_logprob_start": -1}, {}, "prompt_logprob_start"),
    "a start alone": ({"prompt_logprob_start": 3}, {}, "prompt_logprob_start"),
    "a stream": ({"prompt_logprob_token_ids": [[1]] * 39}, {"stream": True}, "prompt_logprob_token_ids"),
    "many candidates": ({"prompt_logprob_token_ids": [[*range(1025)]] + [[1]] * 38}, {}, "1024 different"),
    "one long row": ({"prompt_logprob_token_ids": [[LEFT_OUT] * 500_000] + [[1]] * 38}, {}, "16777216 places"),
    "many beside the output's": (
        {
            "prompt_logprob_token_ids": [[*range(1020)]] + [[1]] * 38,
            "logprobs": 0,
            "logprob_token_ids": [1, 2, 3, 4, 5],
        },
        {},
        "1019 different",
    ),
    "a trace": (
        {"prompt_logprob_token_ids": [[1]] * 39, "trace_decode_token_ids": [5]},
        {},
        "prompt_logprob_token_ids",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_refused_by_name(http, case):
    sampling, fields, named = REFUSED[case]
    answer = ask(http, sampling=sampling, **fields)
    assert answer.status == 400 and named in answer.message, answer


def test_chats_show_the_tokens_that_were_asked_for(http):
    """The tokens of vLLM's logprob_token_ids follow the sampled token, in place of the most probable ones."""
    chat = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 3,
        "temperature": 0,
        "return_token_ids": True,
    }
    everything = http.post("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": -1}).json
    fields = {"logprobs": True, "top_logprobs": 2, "logprob_token_ids": [7, 11], "return_tokens_as_token_ids": True}
    answer = http.post("/v1/chat/completions", {**chat, **fields})
    assert answer.status == 200, answer
    (choice,) = answer.json["choices"]
    drawn = choice["token_ids"]
    for i, entry in enumerate(choice["logprobs"]["content"]):
        shown = [(each["token"], each["logprob"]) for each in entry["top_logprobs"]]
        assert [name for name, _ in shown] == [f"token_id:{token}" for token in (drawn[i], 7, 11)]
        assert shown[0] == (entry["token"], entry["logprob"])
        all_there = [each["logprob"] for each in everything["choices"][0]["logprobs"]["content"][i]["top_logprobs"]]
        assert all(logprob in all_there for _, logprob in shown)
    events = list(http.events("/v1/chat/completions", {**chat, **fields, "stream": True}))
    streamed = [entry for event in events for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == choice["logprobs"]["content"]
    refused = http.post("/v1/chat/completions", {**chat, "logprob_token_ids": [7]})
    assert refused.status == 400 and "logprob_token_ids" in refused.message
    unknown = http.post("/v1/chat/completions", {**chat, "logprobs": True, "logprob_token_ids": [99999]})
    assert unknown.status == 400 and "99999" in unknown.message
