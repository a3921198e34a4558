"""pitstop.Engine's sessions and sampling masks: SGLang's arguments, and the outputs' fields."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tree"))

import pitstop  # noqa: E402
from process_tree import environment  # noqa: E402

PROMPT = "Once upon a time"
DRAWN = {"max_new_tokens": 8, "temperature": 0.8, "seed": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine():
    os.environ["PITSTOP_BUILD"] = environment()["PITSTOP_BUILD"]
    with pitstop.Engine("stories", threads=1, port=0) as engine:
        yield engine


def test_a_turn_continues_from_the_tokens_of_the_turn_that_it_names(engine):
    session = engine.open_session(capacity_of_str_len=1000, timeout=60)
    first = engine.generate(PROMPT, DRAWN, session_params={"id": session}, rid="turn-1")
    second = engine.generate(input_ids=[300], sampling_params=DRAWN, session_params={"id": session, "rid": "turn-1"})
    assert second.prompt_ids == first.prompt_ids + first.output_ids + [300]
    assert second.counts.history_tokens == len(first.prompt_ids) + 8
    assert engine.generate(input_ids=second.prompt_ids, sampling_params=DRAWN).output_ids == second.output_ids
    with pytest.raises(TypeError, match="sequel"):
        engine.generate(PROMPT, DRAWN, session_params={"id": session, "sequel": 1})
    engine.close_session(session)
    with pytest.raises(pitstop.PitstopError, match="it was closed"):
        engine.generate(PROMPT, DRAWN, session_params={"id": session})


@pytest.mark.parametrize("stream", [False, True])
def test_a_mask_has_the_tokens_of_each_draw(engine, stream):
    drawing = {**DRAWN, "top_k": 4}
    plain = engine.generate(PROMPT, drawing)
    output = engine.generate(PROMPT, drawing, return_sampling_mask=True, stream=stream)
    if stream:
        *_, output = output
    assert output.output_ids == plain.output_ids and plain.supports == []
    assert all(token in mask and len(mask) == 4 for token, mask in zip(output.output_ids, output.supports))
    assert len(output.supports) == len(output.support_logprobs) == 8 and max(output.support_logprobs) <= 0
    assert output.meta_info["output_token_sampling_mask"] == output.supports
    with pytest.raises(pitstop.PitstopError, match="drawn among all"):
        engine.generate(PROMPT, DRAWN, return_sampling_mask=True)
