"""Requests of chaos to trees that verify drafts: repeated prompts, and drafts that are partly
wrong.
"""

import random

from chaos.drafts import KEPT, Drafts
from chaos.replay import Record


class Counts:
    def __init__(self):
        self.of = {}

    def count(self, group, name, number=1):
        self.of[name] = self.of.get(name, 0) + number


def ended(prompt, tokens):
    return Record("r", prompt, tokens, [])


def test_prompts_come_again_some_with_a_draft_that_is_partly_wrong():
    counts, rng = Counts(), random.Random(1)
    drafts = Drafts(counts, 500)
    assert drafts.choose(rng) is None, "nothing was asked yet"
    drafts.note(ended([1, 2, 3], list(range(100, 140))), 9, 5)
    drafts.note(ended([], []), 1, 1)
    assert counts.of == {"right": 6, "wrong": 4}
    chosen = [drafts.choose(rng) for _ in range(400)]
    again = [each for each in chosen if each]
    assert 100 < len(again) < 300 and all(prompt == [1, 2, 3] for prompt, _ in again)
    brought = [draft for _, draft in again if draft]
    assert 30 < len(brought) < len(again) - 30
    right = [sum(a == b for a, b in zip(draft, range(100, 140))) for draft in brought]
    assert min(right) < 38 and max(right) > 30 and all(0 <= token < 500 for draft in brought for token in draft)


def test_the_latest_requests_are_kept():
    drafts, rng = Drafts(Counts(), 500), random.Random(2)
    for number in range(3 * KEPT):
        drafts.note(ended([number], [number]), 0, 0)
    seen = {each[0][0] for each in (drafts.choose(rng) for _ in range(2000)) if each}
    assert seen == set(range(2 * KEPT, 3 * KEPT))
