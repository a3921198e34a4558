"""Speculation changes no bit (P11). Requests of every kind give the same tokens, logprobs, scores,
texts and finishes with drafts and without: on trees with one rank and with two, with two replicas,
with little memory, and while weights change.

600 requests always, 2,400 with launch/test --speculation."""

import contextlib
import os
import random
import threading
import time

import pytest

from amid import paused_amid, turns
from process_tree import ROOT, run
from wire import Refused

STORIES = str(ROOT / "launch/models/stories")
VOCAB = 2048
WORDS = "the a little girl boy dog king queen tree river day night went said was happy sad big".split()
NUM_REQUESTS = int(os.environ.get("PITSTOP_SPECULATION_REQUESTS", 600))
SAMPLES = 4  # of a prompt that has several
QUOTED = "Tom had a red ball. Tom had a red ball. Tom had a red ball. Tom had a"


def kinds(draw, index):
    """Sampling parameters and logprobs of one request."""
    sampled = {"temperature": draw.choice([0.7, 1.0, 1.3]), "seed": 1000 + index}
    return [
        {"temperature": 0.0},
        sampled,
        {**sampled, "top_p": 0.9, "top_k": 40},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {**sampled, "frequency_penalty": 0.5},
        {**sampled, "logit_bias": {11: 3.0, 13: -50.0}, "min_p": 0.02},
        {"temperature": 0.0, "bad_words": ["the", "a little"], "min_new_tokens": 6},
        {**sampled, "allowed_token_ids": list(range(3, 900)), "min_new_tokens": 3},
        {"temperature": 0.0, "stop": [" was", "\n\n", "said"]},
        {**sampled, "stop_token_ids": [draw.randrange(VOCAB) for _ in range(40)]},
        {"max_new_tokens": 0},
    ][index % 11]


def requests(number, seed=1):
    """(prompt, fields) of requests of every kind. Some share a prompt; a few have four samples."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 50))) for _ in range(max(number // 4, 1))] + [QUOTED]
    made = []
    for index in range(number):
        fields = {"max_new_tokens": draw.randint(6, 48), **kinds(draw, index)}
        fields["ignore_eos"] = draw.random() < 0.5
        mode = draw.choice(["raw", "scaled", "truncated"])
        fields["logprobs"] = {"enabled": draw.random() < 0.8, "mode": mode, "top": draw.choice([0, 0, 3])}
        if not fields["logprobs"]["enabled"]:
            fields["logprobs"] = {}
        elif draw.random() < 0.3:
            fields["logprobs"].update(prompt_start=0, ids=[5, 9])
        if not fields["max_new_tokens"]:
            fields["logprobs"] = {"enabled": True, "mode": mode, "prompt_start": 0}
        if index % 2 and any(fields.get(name) for name in ("top_k", "min_p", "allowed_token_ids")):
            fields["logprobs"]["support"] = True
        made.append((draw.choice(texts), fields))
    sampled = [each for each in made if "seed" in each[1]][::SAMPLES]
    more = [(prompt, {**fields, "seed": 5000 + sample}) for prompt, fields in sampled for sample in range(1, SAMPLES)]
    return [*more, *made][:number]


def bits(output):
    """Everything that must not depend on drafts."""
    lists = ("logprobs", "ranks", "top_ids", "top_logprobs", "ids_logprobs")
    prompts = [chunk["prompt"] for chunk in output.chunks if "prompt" in chunk]
    counts = {name: output.counts[name] for name in ("prompt_tokens", "completion_tokens")}
    return {
        "tokens": output.tokens,
        **{name: output._joined(name) for name in lists},
        "supports": {
            name: [entry for chunk in output.chunks for entry in chunk.get("supports", {}).get(name, [])]
            for name in ("sizes", "ids", "logprobs")
        },
        "text": output.text,
        "prompt": prompts,
        "finish": output.finish,
        "counts": counts,
        "versions": sum(span["tokens"] for span in output.spans),
    }


def run_all(door, work, drafts=None, aborted=()):
    """`aborted`: indices of requests that are aborted once they have a token."""
    rids = []
    for index, (prompt, fields) in enumerate(work):
        more = {"draft_ids": drafts[index]} if drafts and drafts[index] else {}
        rids.append(door.start(prompt, **fields, **more))
    for index in aborted:
        output = door.outputs[rids[index]]
        while not output.chunks:
            door.step()
        if output.finish is None:
            door.send("cancel", rids=[output.rid])
    return door.finish(rids)


def check(work, got, want):
    num_aborted = 0
    for (prompt, fields), output, each in zip(work, got, want, strict=True):
        if output.finish["reason"] == "abort":
            num_aborted += 1
            num = len(output.tokens)
            assert output.tokens == each["tokens"][:num] and output.logprobs == each["logprobs"][:num], (prompt, fields)
        else:
            assert bits(output) == each, (prompt, fields)
    return num_aborted


@contextlib.contextmanager
def meanwhile(tree, disturb):
    """Calls disturb(admin, draw) repeatedly, as long as the block runs."""
    is_over, failures = threading.Event(), []

    def run():
        try:
            with tree.door("admin") as admin:
                draw = random.Random(9)
                while not is_over.is_set():
                    disturb(admin, draw)
        except Exception as failure:  # reported by the test's own thread
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert not failures, failures


def retract(admin, draw):
    admin.call("pause_generation", mode="retract")
    admin.call("continue_generation")
    time.sleep(draw.uniform(0.02, 0.2))


def update(admin, draw):
    policy = draw.choice(["keep", "recompute", "drain"])
    spec = {"source": {"kind": "disk", "path": STORIES}, "kv_policy": policy}
    assert admin.call("update_weights", update=spec)["ok"]
    admin.call("pause_generation", mode=draw.choice(["in_place", "retract", "wait"]))
    admin.call("continue_generation")


def partly_wrong(outputs, seed=3):
    """Drafts: the outputs, with every eighth token replaced, and more after the end."""
    draw = random.Random(seed)
    return [
        [token if draw.random() > 0.12 else draw.randrange(VOCAB) for token in output.tokens] + [7, 8, 9]
        if draw.random() < 0.7
        else None
        for output in outputs
    ]


def counts_of(door_or_tree):
    with door_or_tree.door("admin") as admin:
        replicas = admin.call("status")["replicas"]
    return [replica.get("drafts") for replica in replicas]


# Flags of both trees, and the value of --speculate.
SHAPES = {
    "plain": ((), 4),
    "auto": ((), "auto"),
    "tight": (("--max-total-tokens", 256, "--page-size", 8, "--chunked-prefill-size", 32), 4),
    "tp2": (("--tp", 2), 4),
    "dp2": (("--dp", 2), 4),
    "experts": (("--model", "stories-moe"), 4),
    "hybrid": (("--model", "stories-hybrid"), 4),
    "hybrid-tp2": (
        ("--model", "stories-hybrid", "--tp", 2, "--max-total-tokens", 512, "--state-checkpoints", 6),
        "auto",
    ),
}
SMALLER = {"hybrid": 2, "hybrid-tp2": 4}  # shape -> the divisor of the number of requests


@pytest.mark.parametrize("shape", SHAPES)
def test_P11_every_kind_of_request_gives_the_same_bits(start_tree, tell, shape):
    flags, speculate = SHAPES[shape]
    work = requests(max(NUM_REQUESTS // (len(SHAPES) - len(SMALLER)), 100) // SMALLER.get(shape, 1))
    off = start_tree(*flags)
    with off.door() as door:
        outputs = run_all(door, work)
    assert counts_of(off) == [None] * len(counts_of(off)), "off tells of no drafts"
    want = [bits(output) for output in outputs]
    off.stop()

    on = start_tree(*flags, "--speculate", speculate)
    with on.door() as door:
        check(work, run_all(door, work), want)
        with meanwhile(on, retract):
            num_aborted = check(work, run_all(door, work, partly_wrong(outputs), range(0, len(work), 9)), want)
        got = run_all(door, work)  # these draft from the outputs of the requests before
        check(work, got, want)
    if shape == "tight":
        assert sum(output.counts["retractions"] for output in got) > 0, "no pressure, no test"
    total = {name: sum(each[name] for each in counts_of(on)) for name in ("passes", "drafted", "accepted")}
    tell(f"{shape}: {len(work)} requests, {num_aborted} aborted, {total}")
    assert num_aborted > 0
    if speculate != "auto":  # auto drafts only if that pays
        assert total["accepted"] > 300 and total["drafted"] - total["accepted"] > 30, total


def test_P3_P11_updates_and_pauses_between_passes_with_drafts(start_tree):
    """The weights stay the same under every policy and every pause, so no bit may differ."""
    work = requests(max(NUM_REQUESTS // 10, 60), seed=5)
    tree = start_tree("--speculate", 4)
    with tree.door() as door:
        outputs = run_all(door, work)
        want = [bits(output) for output in outputs]
        with meanwhile(tree, update):
            for _ in range(3):
                check(work, run_all(door, work, partly_wrong(outputs)), want)
    assert counts_of(tree)[0]["accepted"] > 300


def test_P4_P11_an_aborted_request_has_the_first_tokens_of_the_whole(start_tree):
    tree = start_tree("--speculate", 6)
    with tree.door() as door, tree.door("admin") as admin:
        fields = {"max_new_tokens": 900, "temperature": 0.0, "ignore_eos": True, "logprobs": {"enabled": True}}
        whole = door.generate(QUOTED, **fields)
        for num_passes in (1, 2, 5, 9):
            begin = lambda: [door.start(QUOTED, draft_ids=whole.tokens, **fields)]
            (rid,) = paused_amid(admin, begin, door.finish)
            for _ in range(num_passes):
                turns(admin, lambda: True, "a pass")
            assert admin.call("continue_generation")["ok"]
            door.send("cancel", rids=[rid])
            (output,) = door.finish([rid])
            assert output.finish["reason"] == "abort"
            num = len(output.tokens)
            assert 0 < num < 900 and output.tokens == whole.tokens[:num] and output.logprobs == whole.logprobs[:num]


def test_a_text_that_is_quoted_takes_few_passes(start_tree):
    tree = start_tree("--speculate", 8)
    with tree.door() as door:
        fields = {"max_new_tokens": 100, "temperature": 0.0, "ignore_eos": True}
        first = door.generate("Once upon a time", **fields)
        again = door.generate("Once upon a time", **fields)
        other = door.generate("One day, a little girl", draft_key="k", **fields)
        keyed = door.generate("One day, a little girl", draft_key="other", **fields)
    assert again.tokens == first.tokens and keyed.tokens == other.tokens
    assert again.counts["drafts"]["passes"] < 25, again.counts
    assert keyed.counts["drafts"]["passes"] > again.counts["drafts"]["passes"], "of another group"


def test_bad_drafts_are_refused_by_name(start_tree):
    tree = start_tree("--speculate", 2)
    with tree.door() as door:
        for fields, why in (
            ({"draft_ids": [5, VOCAB]}, r"draft_ids\[1\] is token 2048"),
            ({"draft_ids": [-1]}, r"draft_ids\[0\] is token -1"),
            ({"draft_ids": [1] * ((1 << 17) + 1)}, "draft_ids has 131073 tokens; at most 131072"),
            ({"draft_key": ""}, "draft_key has 0 bytes"),
            ({"draft_key": "k" * 257}, "draft_key has 257 bytes"),
        ):
            with pytest.raises(Refused, match=why):
                door.generate("Once", max_new_tokens=2, **fields)


@pytest.mark.parametrize("value", ["on", "0", "33", "-1"])
def test_another_value_of_the_flag_is_refused(value):
    ended = run("serve", "--no-http", f"--speculate={value}")
    assert ended.returncode == 2 and "--speculate" in ended.stderr, ended.stderr
