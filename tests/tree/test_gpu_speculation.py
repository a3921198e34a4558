"""Speculation changes no bit (P11) on the GPU in software: requests of every kind, on one rank and
on two, whose steps are CUDA graphs, with retractions, aborts, updates and grammars.
"""

import random

import pytest

from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from test_speculation import bits, check, counts_of, partly_wrong, requests, retract, run_all, update

pytestmark = needs_gpu
NUM = 12  # requests: each kind, and a further sample
WORDS_MAX = 4  # of a prompt
TOKENS_MAX = 8  # one takes some hundredths of a second
FLAGS = (*CUDA, "--deterministic")


def short_requests(seed):
    """The same kinds of requests as on the CPU's trees, without sampling masks, which GPUs do not report; and one
    request with a grammar."""
    work = []
    for prompt, fields in requests(NUM, seed):
        fields = {**fields, "max_new_tokens": min(fields["max_new_tokens"], TOKENS_MAX)}
        if "logprobs" in fields:
            fields["logprobs"] = {name: each for name, each in fields["logprobs"].items() if name != "support"}
        work.append((" ".join(prompt.split()[:WORDS_MAX]), fields))
    fields = {"temperature": 1.0, "seed": 4, "regex": "( [a-z]{2,5}){3}\\.", "logprobs": {"enabled": True}}
    return [*work, ("Once upon a time", {**fields, "max_new_tokens": TOKENS_MAX})]


def run_amid(tree, work, drafts, disturb):
    """Disturbs the tree when some request has tokens, and again when a third of them have ended."""
    with tree.door() as door, tree.door("admin") as admin:
        rids = [
            door.start(prompt, **fields, **({"draft_ids": ids} if ids else {}))
            for (prompt, fields), ids in zip(work, drafts, strict=True)
        ]
        outputs = [door.outputs[rid] for rid in rids]
        for is_time in (
            lambda: any(output.tokens for output in outputs),
            lambda: 3 * sum(output.finish is not None for output in outputs) >= len(outputs),
        ):
            while not is_time():
                door.step()
            disturb(admin, random.Random(len(rids)))
        return door.finish(rids)


def without_drafts(door, work):
    """(work, outputs), without the requests that a build without xgrammar refuses."""
    outputs = run_all(door, work)
    if "no xgrammar" in outputs[-1].finish.get("message", ""):
        work, outputs = work[:-1], outputs[:-1]
    assert {output.finish["reason"] for output in outputs} <= {"length", "stop"}, [output.finish for output in outputs]
    return work, outputs


@pytest.mark.parametrize("tp", [1, 2])
def test_P11_every_kind_of_request_gives_the_same_bits(gpu, start_tree, tell, tp):  # noqa: F811
    off = start_tree(*FLAGS, "--tp", tp)
    with off.door() as door:
        work, outputs = without_drafts(door, short_requests(seed=tp))
    assert counts_of(off) == [None]
    want = [bits(output) for output in outputs]
    off.stop()

    on = start_tree(*FLAGS, "--tp", tp, "--speculate", 4, "--log-level", "info")
    with on.door() as door:
        num_aborted = check(work, run_all(door, work, partly_wrong(outputs), range(0, len(work), 6)), want)
    check(work, run_amid(on, work, partly_wrong(outputs, seed=4), retract), want)
    check(work, run_amid(on, work, partly_wrong(outputs, seed=5), update), want)
    (counts,) = counts_of(on)
    tell(f"tp {tp}: {num_aborted} aborted, {counts}")
    assert counts["accepted"] > 40 and counts["drafted"] - counts["accepted"] > 10, counts
    assert "a graph of" in on.log()


def test_P11_a_budget_changes_no_bit(gpu, start_tree):  # noqa: F811
    """Steps without drafts overlap, and steps with drafts follow them."""
    off = start_tree(*FLAGS)
    with off.door() as door:
        work, outputs = without_drafts(door, short_requests(seed=3))
    off.stop()
    on = start_tree(*FLAGS, "--speculate", "auto")
    with on.door() as door:
        check(work, run_all(door, work, partly_wrong(outputs)), [bits(output) for output in outputs])
    assert counts_of(on)[0]["passes"] > 0
