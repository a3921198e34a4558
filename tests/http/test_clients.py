"""OpenAI's own client, unmodified. The routers are in test_routers.py."""

import warnings

import pytest

PROMPT = "Once upon a time"


@pytest.fixture
def openai_client(http):
    openai = pytest.importorskip("openai", reason="the package index could not be reached")
    with openai.OpenAI(base_url=http.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


def test_openai_lists_the_model(openai_client):
    assert [model.id for model in openai_client.models.list()] == ["stories"]
    assert openai_client.models.retrieve("stories").id == "stories"


def test_openai_completes(openai_client, http):
    expected = http.generate(text=PROMPT, max_new_tokens=12, temperature=0)
    completion = openai_client.completions.create(
        model="stories", prompt=PROMPT, max_tokens=12, temperature=0, logprobs=2, seed=1
    )
    assert completion.choices[0].text == expected["text"]
    assert completion.choices[0].finish_reason == "length"
    assert len(completion.choices[0].logprobs.token_logprobs) == 12
    assert completion.usage.total_tokens == 16


def test_openai_streams(openai_client, http):
    expected = http.generate(text=PROMPT, max_new_tokens=12, temperature=0)
    stream = openai_client.completions.create(
        model="stories", prompt=PROMPT, max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"return_token_ids": True},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == expected["text"]
    assert chunks[-1].usage.completion_tokens == 12
    ids = sum((c.choices[0].token_ids for c in chunks if c.choices), [])
    assert ids == expected["output_ids"]


def test_openai_takes_tokens_and_gives_samples(openai_client):
    completion = openai_client.completions.create(
        model="stories", prompt=[[740, 543], [258]], max_tokens=3, n=2, temperature=1.0
    )
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


def test_openai_knows_our_errors_by_their_type(openai_client):
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.BadRequestError, match="context"):
        openai_client.completions.create(model="stories", prompt=PROMPT, max_tokens=9999)
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("other")


def test_openai_validates_a_chat_strictly(http):
    openai = pytest.importorskip("openai", reason="the package index could not be reached")
    asked = {"model": "stories", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    with openai.OpenAI(
        base_url=http.url + "/v1", api_key="any", max_retries=0, _strict_response_validation=True
    ) as client:
        answer = client.chat.completions.create(**asked)
        assert answer.metadata == {"weight_version": "epoch 1"}
        assert answer.weight_version_spans[0]["end"] == 3
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pydantic warns of a member of another type
            answer.model_dump()
        *_, last = client.chat.completions.create(**asked, stream=True)
        assert last.weight_versions == [{"version": "epoch 1", "start": 0, "end": 3}]


def test_openai_knows_a_prompt_that_is_too_long(openai_client):
    openai = pytest.importorskip("openai")
    for ask in (
        lambda: openai_client.completions.create(model="stories", prompt="x " * 2000),
        lambda: openai_client.completions.create(model="stories", prompt="x", max_tokens=5000, stream=True),
        lambda: openai_client.chat.completions.create(
            model="stories", messages=[{"role": "user", "content": "x " * 2000}], max_tokens=5
        ),
        lambda: openai_client.responses.create(model="stories", input="x " * 2000),
    ):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as refused:
            ask()
        assert refused.value.code == "context_length_exceeded"


def test_openai_ends_a_stream_it_leaves(openai_client, wait_for_open):
    stream = openai_client.completions.create(
        model="stories", prompt=PROMPT, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_for_open(0)
