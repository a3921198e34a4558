"""Each trainer's own code reads the routes of a tree's answers: its rows are those that the bus has
for the same tokens.

slime is in no package index: PITSTOP_SLIME names a checkout of it (read at 624b824)."""

import json
import os
import sys

import numpy
import pytest

from environments import LIGHT, ROOT, python_of

sys.path.insert(0, str(ROOT / "client" / "python"))

import pitstop  # noqa: E402  (after the path)

MODEL = ROOT / "launch" / "models" / "stories-moe"
NUM_TOKENS = 12
PROMPT = [401, 12, 1033, 7, 7, 240, 1999, 3]
READERS = {"slime": "slime_routes", "verl": LIGHT, "skyrl": "skyrl_routes", "areal": LIGHT}


@pytest.fixture(params=READERS)
def reader(request):
    if request.param == "slime" and not os.environ.get("PITSTOP_SLIME"):
        pytest.skip("PITSTOP_SLIME names no checkout of slime")
    python_of(READERS[request.param])  # skips before a tree starts, if the packages cannot be installed
    return request.param


@pytest.mark.parametrize("tree", [("--model", MODEL, "--compute", "fp32")], indirect=True, ids=["stories-moe"])
def test_routes_are_read_as_the_trainer_reads_them(reader, tree, step):
    config = json.loads((MODEL / "config.json").read_text())
    shape = config["num_hidden_layers"], config["num_experts_per_tok"]
    said = step(
        READERS[reader],
        f"{reader}_routes_step",
        json.dumps(PROMPT),
        NUM_TOKENS,
        *shape,
        os.environ.get("PITSTOP_SLIME", "-"),
    )
    tokens, rows = said["tokens"], numpy.array(said["rows"])
    assert tokens[: len(PROMPT)] == PROMPT and len(tokens) >= len(PROMPT) + NUM_TOKENS
    with pitstop.Client(str(tree.run_dir)) as client:
        chunk = client.generate(
            tokens, max_new_tokens=0, logprobs={"enabled": True, "prompt_start": 0}, routed_experts_start=0
        )
        told = chunk.result().routes.array()
    assert told.shape == (len(tokens) - 1, *shape)
    assert rows.shape == told.shape and (rows == told).all()
    assert len({row.tobytes() for row in told}) > len(tokens) // 2, "the model's routers choose"
