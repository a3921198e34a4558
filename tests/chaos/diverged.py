"""A diverged version: each weight is finite, but some passes overflow. Also the errors that may end requests for this
reason."""

import re
import threading

import numpy

from . import weights

OVERFLOWS_ONE_IN = 150  # one token in this many overflows, if the head is untied
HUGE = numpy.float32(2.0**80)  # squares of it overflow
FORM = re.compile(
    r"(the hidden state was not finite|the logits were not finite) (for|at or before) "
    r"(prompt|output) token (\d+), in step \d+ under weight epoch (\d+)"
)


def overflows(token):
    return token % OVERFLOWS_ONE_IN == 7


def diverge(tensors, is_tied):
    """A diverged version: the embeddings of some tokens are huge. With a tied head, which reads
    them for every logit, a layer's outputs are huge instead.
    """
    changed = dict(tensors)
    if is_tied:
        name = next(each for each in sorted(tensors) if each.endswith("self_attn.o_proj.weight"))
        changed[name] = weights.to_bf16(weights.from_bf16(tensors[name]) * HUGE)
    else:
        name = "model.embed_tokens.weight"
        rows = weights.from_bf16(tensors[name])
        rows[[overflows(token) for token in range(len(rows))]] = HUGE
        changed[name] = weights.to_bf16(rows)
    return changed, name


def place_of(message):
    """(whether the error names the very token, "state" or "logits", "prompt" or "output", the token's
    index, the epoch); None: another error.
    """
    found = FORM.search(message)
    if not found:
        return None
    what, where, whose, index, epoch = found.groups()
    return where == "for", "state" if "state" in what else "logits", whose, int(index), int(epoch)


def problem_of(place, prompt, tokens, is_tied):
    """The reason why the token at `place` cannot overflow, or None if it may. `prompt`: empty if unknown."""
    is_there, kind, whose, index, _ = place
    if is_tied or not prompt:
        return None
    whole = [*prompt, *tokens]
    at = index + (len(prompt) if whose == "output" else 0) - (kind == "logits")
    if whose == "output" and at >= len(whole):
        return None  # a failed answer without a stream has no tokens
    if not 0 <= at < len(whole):
        return f"no token has that place among {len(prompt)} and {len(tokens)}"
    if any(map(overflows, whole[at : at + 1] if is_there else whole[: at + 1])):
        return None
    return f"token {whole[at]} does not overflow"


class Overflows:
    """The requests that ended with not_finite, and whether the named version explains each. Thread: any."""

    def __init__(self, world):
        self._world = world
        self._is_tied = world.config["tie_word_embeddings"]
        self._lock = threading.Lock()
        self._late = []  # (rid, message, epoch) of errors whose epoch is not seen yet
        directory = world.directory / "diverged"
        directory.mkdir()
        tensors, self._name = diverge(world.checkpoints[0][2], self._is_tied)
        (directory / "config.json").write_text((world.checkpoints[0][0] / "config.json").read_text())
        weights.write_checkpoint(directory, tensors, weights.MODELS / "stories")
        digest = world.book.add(tensors)
        world.book.knows(digest)
        self._key = world.book.keys_in(digest)[self._name]
        world.diverged = (directory, digest, tensors)

    def is_diverged(self, digest):
        """Whether this version has the huge embeddings. Partial updates may have changed its other tensors."""
        book = self._world.book
        return book.knows(digest) and book.keys_in(digest)[self._name] == self._key

    def judge(self, record, message):
        """A request has ended with not_finite."""
        report, place = self._world.report, place_of(message)
        report.count("not finite", record.rid.rsplit("-", 2)[0])
        if place is None:
            report.problem(f"{record.rid} does not say what was not finite: {message}")
            return
        wrong = problem_of(place, record.prompt, record.tokens, self._is_tied)
        if wrong:
            report.problem(f"{record.rid}: {wrong}: {message}\n  {record}")
        digest = self._world.epochs.all().get(place[-1])
        if digest is None:
            with self._lock:
                self._late.append((record.rid, message, place[-1]))
        elif not self.is_diverged(digest):
            report.problem(f"{record.rid}: epoch {place[-1]} is {digest}, which is healthy: {message}")

    def judge_late(self):
        """Called at the end of the episode, because some epochs were seen only after their requests."""
        for rid, message, epoch in self._late:
            digest = self._world.epochs.all().get(epoch)
            if digest is None:
                self._world.report.count("not finite", "of an epoch that nobody saw")
            elif not self.is_diverged(digest):
                self._world.report.problem(f"{rid}: epoch {epoch} is {digest}, which is healthy: {message}")
