"""With --speculate: repeats prompts, with their earlier outputs as drafts, in which some tokens are wrong.

The oracle knows nothing of drafts: it verifies the same tokens with and without them (P11).
"""

import collections
import threading

KEPT = 16  # requests
AGAIN = 0.5  # the share of prompts that were asked before
BRINGS = 0.5  # the share of repeated prompts that brings a draft; the others draft from their group
WRONG = 0.1  # the share of a draft's tokens that are replaced


class Drafts:
    """Thread: any."""

    def __init__(self, report, vocab_size):
        self._report, self._vocab_size = report, vocab_size
        self._lock = threading.Lock()
        self._kept = collections.deque(maxlen=KEPT)  # (prompt, output)

    def note(self, record, drafted, accepted):
        """Notes an ended request, and how many drafts were verified and accepted."""
        self._report.count("drafts", "right", accepted)
        self._report.count("drafts", "wrong", drafted - accepted)
        if record.prompt and record.tokens:
            with self._lock:
                self._kept.append((list(record.prompt), list(record.tokens)))

    def choose(self, rng):
        """(prompt, draft or None) of an earlier request; None: a new prompt."""
        with self._lock:
            kept = list(self._kept)
        if not kept or rng.random() >= AGAIN:
            return None
        prompt, output = rng.choice(kept)
        if rng.random() >= BRINGS:
            return prompt, None
        draft = [rng.randrange(self._vocab_size) if rng.random() < WRONG else token for token in output]
        return prompt, draft + [rng.randrange(self._vocab_size) for _ in range(3)]
