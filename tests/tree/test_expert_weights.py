"""--expert-weights: the weights of a token's experts, kept in fp32 or rounded to bf16, against the oracle of tests/chaos."""

import json
import sys

import numpy
import pytest

from process_tree import ROOT

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]

import pitstop  # noqa: E402  (after the path)
from chaos.oracle import Oracle, Rounding, Sequence, log_softmax  # noqa: E402  (after the path)
from chaos.weights import from_bf16, read_checkpoint, to_bf16  # noqa: E402

MODEL = ROOT / "launch/models/stories-moe"
CONFIG = json.loads((MODEL / "config.json").read_text())
IDS = [int(each) for each in numpy.random.default_rng(1).integers(0, 2000, 100)]
ERROR = 5e-5  # of logprobs in fp32; rounding the weights moves these logprobs by up to 9e-3


class RoundedOracle(Oracle):
    """Rounds the weights of experts as transformers does in a bf16 Qwen."""

    def _experts(self, sequence, x, layer, given):
        logits = x @ layer["router"]
        chosen = numpy.argsort(-logits, axis=1, kind="stable")[:, : CONFIG["num_experts_per_tok"]]
        shares = numpy.exp(numpy.take_along_axis(logits, chosen, axis=1))
        shares = from_bf16(to_bf16(shares / shares.sum(axis=1, keepdims=True)))
        result = numpy.zeros_like(x)
        for expert, mlp in enumerate(layer["mlps"]):
            rows, places = numpy.nonzero(chosen == expert)
            result[rows] += shares[rows, places, None] * self._mlp(x[rows], *mlp)
        return result


def scores_of(kind):
    oracle = kind(CONFIG, Rounding.FP32)
    logits = oracle.forward(Sequence(oracle), oracle.weights(read_checkpoint(MODEL)), IDS[:-1], 0)
    return log_softmax(logits)[numpy.arange(len(IDS) - 1), IDS[1:]]


@pytest.mark.parametrize(
    "flags, kind", [((), Oracle), (("--expert-weights", "fp32"), Oracle), (("--expert-weights", "bf16"), RoundedOracle)]
)
def test_weights_of_experts_are_rounded_as_the_flag_says(start_tree, flags, kind):
    tree = start_tree("--model", MODEL, "--compute", "fp32", *flags)
    with pitstop.Client(tree.run_dir) as client:
        chunk = client.generate(IDS, max_new_tokens=0, logprobs={"enabled": True, "prompt_start": 0}).result()
    told = numpy.array(chunk.prompt.logprobs[1 - len(IDS) :])
    assert numpy.abs(told - scores_of(kind)).max() < ERROR
    other = RoundedOracle if kind is Oracle else Oracle
    assert numpy.abs(told - scores_of(other)).max() > 10 * ERROR
