"""Whether a request's tokens are what the versions that it names would have given.

A request says for each token the version that it was sampled under, and the oldest and the newest
version of the KV that it attended to. The KV entry of a position belongs to the pass that computed it:
of an output token, the pass that sampled the next one; of the prompt, the pass that sampled the first
token, but for what was computed before an update came between two chunks, or found in the prefix cache.
A retraction computes all of it again. Where that leaves more than one history possible, each is tried: a
wrong one does not explain the logprobs.
"""

import dataclasses

import numpy

from .oracle import Sequence, log_softmax

HYPOTHESES_MAX = 600  # of one run of tokens


@dataclasses.dataclass
class Record:
    """A request that has ended, as its client saw it."""

    rid: str
    prompt: list
    tokens: list
    spans: list  # of (epoch, digest, number of tokens, kv_min_epoch, kv_max_epoch)
    logprobs: list | None = None  # of the tokens, before temperature
    is_greedy: bool = False
    top_k: int = 0  # 0: all ids
    cached: int = 0  # prompt tokens from the prefix cache
    retractions: int = 0
    kv_tolerance: str = "never"
    client: str = ""
    ending: str = ""


@dataclasses.dataclass
class Verdict:
    rid: str
    num_verified: int = 0  # tokens
    problem: str | None = None
    is_undecided: bool = False  # more histories were possible than were tried
    num_hypotheses: int = 0
    largest_error: float = 0.0


class Replay:
    """Verifies records of one tree.

    weights_of(digest)  the oracle's Weights; KeyError: nobody sent such a version
    """

    def __init__(self, oracle, weights_of, tolerance, page_size):
        self.oracle, self.weights_of = oracle, weights_of
        self.tolerance, self.page_size = tolerance, page_size

    def verify(self, record, epochs):
        """`epochs`: {epoch: digest} of every commit that anybody has seen."""
        verdict = Verdict(record.rid)
        verdict.problem = self._shape_problem(record, epochs)
        if verdict.problem is None:
            try:
                self._verify(record, epochs, verdict)
            except KeyError as error:
                verdict.problem = f"a version that nobody sent: {error}"
        return verdict

    def _shape_problem(self, record, epochs):
        covered = sum(span[2] for span in record.spans)
        if covered != len(record.tokens):
            return f"spans cover {covered} of {len(record.tokens)} tokens"
        if record.logprobs is not None and len(record.logprobs) != len(record.tokens):
            return f"{len(record.logprobs)} logprobs for {len(record.tokens)} tokens"
        newest = 0
        for epoch, digest, _, kv_min, kv_max in record.spans:
            if not kv_min <= epoch <= kv_max:
                return f"epoch {epoch} outside its KV's [{kv_min}, {kv_max}]"
            if kv_max > epoch:
                return f"KV of epoch {kv_max}, newer than the pass of epoch {epoch}"
            if epoch < newest:
                return f"epoch {epoch} after {newest}"
            if epochs.get(epoch, digest) != digest:
                return f"epoch {epoch} is {epochs[epoch]}, the span says {digest}"
            newest = epoch
        if record.kv_tolerance == "never" and record.spans and record.cached and not record.retractions:
            first = record.spans[0]
            if first[3] != first[0] and record.cached >= len(record.prompt):
                return "a prefix of older weights was shared with a request that takes none"
        return None

    def _verify(self, record, epochs, verdict):
        known = {**epochs, **{span[0]: span[1] for span in record.spans}}
        if any(kv_min not in known for _, _, _, kv_min, _ in record.spans):
            verdict.is_undecided = True  # it served for less than a moment: nobody saw its digest
            return
        begin, sequence, versions, resets = 0, None, [], record.retractions
        for epoch, _, count, kv_min, kv_max in _joined(record.spans):
            end = begin + count
            while begin < end:
                run = (epoch, kv_min, kv_max, begin, end)
                state = self._explain(record, known, run, sequence, versions, resets, verdict)
                if state is None:
                    return
                sequence, versions, begin, resets = state

    def _explain(self, record, known, run, sequence, versions, resets, verdict):
        """The state after as many tokens of [begin, end) as one history explains, at least one; or
        None, and the verdict says why. `resets`: so many retractions are not yet explained."""
        epoch, kv_min, kv_max, begin, end = run
        ids = (record.prompt + record.tokens)[: len(record.prompt) + end - 1]
        at = len(record.prompt) - 1 + begin
        wrong = None
        if begin:  # it went on
            length = sequence.length
            if _is_range(versions, epoch, kv_min, kv_max):
                good, wrong = self._count_good(record, known[epoch], ids, sequence, begin, end, verdict)
                if good == end - begin or (good and resets):
                    sequence.length = at + good
                    return sequence, versions + [epoch] * good, begin + good, resets
                sequence.length = length
            else:
                held = versions + [epoch]
                wrong = f"KV of {min(held)} to {max(held)}, said to be {kv_min} to {kv_max}"
            if not resets:
                verdict.problem = f"token {begin}, epoch {epoch}: {wrong}"
                return None
        tried = 0
        for prefix in _prefixes(at, epoch, kv_min, kv_max, sorted(known), self.page_size, record.cached):
            tried += 1
            verdict.num_hypotheses += 1
            if tried > HYPOTHESES_MAX:
                verdict.is_undecided = True
                return None
            candidate = Sequence(self.oracle, len(ids) + 1)
            for version, first, last in prefix:
                self.oracle.forward(candidate, self.weights_of(known[version]), ids[first:last], last - first)
            good, why = self._count_good(record, known[epoch], ids, candidate, begin, end, verdict)
            wrong = wrong or why
            if good == end - begin or (good and resets):
                candidate.length = at + good
                flat = [version for version, first, last in prefix for _ in range(last - first)]
                return candidate, flat + [epoch] * good, begin + good, resets - (1 if begin else 0)
        may_be_mixed = record.kv_tolerance != "never" and len([e for e in known if kv_min <= e <= kv_max]) > 2
        if may_be_mixed:  # a cached prefix of three versions and more is not tried
            verdict.is_undecided = True
        else:
            verdict.problem = (
                f"token {begin}, epoch {epoch}, KV {kv_min} to {kv_max}: {wrong} ({tried} histories)"
            )
        return None

    def _count_good(self, record, digest, ids, sequence, begin, end, verdict):
        """How many tokens from `begin` on are right, and what is wrong with the next."""
        at = len(record.prompt) - 1 + begin
        logits = self.oracle.forward(sequence, self.weights_of(digest), ids[at : at + end - begin], 0)
        logprobs = log_softmax(logits)
        chosen = numpy.asarray(record.tokens[begin:end])
        of_chosen = logprobs[numpy.arange(len(chosen)), chosen]
        good = len(chosen)
        why = None
        checks = []
        if record.logprobs is not None:
            errors = numpy.abs(of_chosen - numpy.asarray(record.logprobs[begin:end]))
            checks.append((errors > self.tolerance, "logprob is off by %.6f", errors))
        if record.is_greedy:
            gaps = logprobs.max(axis=-1) - of_chosen
            checks.append((gaps > 2 * self.tolerance, "another token is more probable by %.6f", gaps))
        if record.top_k:
            larger = (logprobs > of_chosen[:, None] + 2 * self.tolerance).sum(axis=-1)
            checks.append(
                (larger >= record.top_k, "%d tokens are more probable than one of the top k", larger)
            )
        for is_wrong, text, values in checks:
            (where,) = numpy.nonzero(is_wrong)
            if len(where) and where[0] < good:
                good = int(where[0])
                why = f"token {begin + good} ({chosen[good]}): " + text % values[good]
        if good and (record.logprobs is not None or record.is_greedy):
            if record.logprobs is not None:
                verdict.largest_error = max(verdict.largest_error, float(errors[:good].max()))
            if why is None or record.retractions:
                verdict.num_verified += good
        return good, why


def _joined(spans):
    """Runs of one version and one range of KV; labels may differ."""
    runs = []
    for epoch, digest, count, kv_min, kv_max in spans:
        if runs and runs[-1][0] == epoch and runs[-1][3:] == [kv_min, kv_max]:
            runs[-1][2] += count
        else:
            runs.append([epoch, digest, count, kv_min, kv_max])
    return runs


def _is_range(versions, epoch, kv_min, kv_max):
    return min(versions + [epoch]) == kv_min and max(versions + [epoch]) == kv_max


def _cuts(length, page_size, cached):
    """Where a prefix may change its version, the likeliest first."""
    likely = [cached, *range(page_size, length, page_size)]
    return [c for c in dict.fromkeys([*likely, *range(1, length + 1)]) if 0 < c <= length]


def _prefixes(length, epoch, kv_min, kv_max, epochs, page_size, cached):
    """Histories of the positions [0, length) before a pass of `epoch`: lists of (version, first,
    last). Those of one version first, then of two, then of three."""
    within = [each for each in epochs if kv_min <= each <= kv_max]
    if kv_min == kv_max == epoch:
        yield [(epoch, 0, length)] if length else []
        return
    cuts = _cuts(length, page_size, cached)
    for first in within:
        for cut in cuts:
            if first != epoch and _is_range([first], epoch, kv_min, kv_max):
                yield [(first, 0, cut)] + ([(epoch, cut, length)] if cut < length else [])
    pages = cuts[: length // page_size + 1]
    for first in within:
        for second in within:
            if first == second or second == epoch or not _is_range([first, second], epoch, kv_min, kv_max):
                continue
            for cut in pages:
                for other in cuts:
                    if other > cut:
                        last = [(epoch, other, length)] if other < length else []
                        yield [(first, 0, cut), (second, cut, other)] + last
