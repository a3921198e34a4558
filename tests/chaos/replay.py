"""Checks a request's tokens against the versions that it names.

A request names for each token the version that sampled it, and the oldest and the newest version of the KV that it
attended to. The KV entry of a position belongs to the pass that computed it. An output token's KV is computed by the
pass that samples the next token. The prompt's KV is computed by the pass that samples the first token, with two
exceptions: parts computed before an update between two chunks, and parts from the prefix cache. A retraction computes
all KV again. If several histories are possible, each is tried: a wrong one does not explain the logprobs.

A record may have the routes of its passes. The oracle follows them, and each must be a choice that the router of that
version may have made. Without routes, two experts with nearly equal logits leave open which one was chosen.
"""

import dataclasses
import time

import numpy

from . import routed
from .oracle import Sequence, log_softmax

HYPOTHESES_MAX = 1500  # histories tried per request
SEARCH_CPU_S = 10.0  # seconds per request: a longer search leaves it undecided
SHORT_MAX = 32  # up to this many positions, histories of three versions are tried with all cuts
PARTLY_MAX = 8  # how many histories that explain only a part of a run are followed


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
    labels: set = dataclasses.field(default_factory=set)  # (label, digest) of its spans
    scores: list | None = None  # of the prompt's tokens from score_start on; None: not reported
    score_start: int = 1
    score_ids: list = dataclasses.field(default_factory=list)
    ids_scores: list = dataclasses.field(default_factory=list)  # [scores * score_ids]
    routes: object = dataclasses.field(default=None, repr=False)  # [passes, layers, k]; None: not reported
    route_epochs: list = dataclasses.field(default_factory=list, repr=False)  # the epoch of each row of `routes`
    brought: object = dataclasses.field(default=None, repr=False)  # the rows of prompt tokens that the request brought
    adapter_name: str = ""  # the requested adapter; empty: the model alone
    adapter: tuple | None = None  # (name, version, digest) in the answer's last chunk
    adapter_floor: int = 0  # the oldest version that the request may get


@dataclasses.dataclass
class Verdict:
    rid: str
    num_verified: int = 0  # verified tokens
    num_scored: int = 0  # verified scores of prompt tokens
    num_rows: int = 0  # verified rows of routes
    problem: str | None = None
    is_undecided: bool = False  # more histories were possible than were tried
    num_hypotheses: int = 0
    largest_error: float = 0.0


class Replay:
    """Verifies records of one tree.

    weights_of(digest[, adapter's digest])  the oracle's Weights; KeyError: nobody sent such a version
    """

    def __init__(self, oracle, weights_of, tolerance, page_size, router_tolerance=0.0):
        self.oracle, self._weights_of = oracle, weights_of
        self._adapter = ()  # the digest of the record's adapter, if any: one version for the whole request
        self.tolerance, self.page_size, self.router_tolerance = tolerance, page_size, router_tolerance

    def verify(self, record, epochs):
        """`epochs`: {epoch: digest} of every commit that anybody has seen."""
        verdict = Verdict(record.rid)
        self._adapter = record.adapter[2:] if record.adapter else ()
        verdict.problem = self._shape_problem(record, epochs) or routed.shape_problem(record, self.oracle.config)
        if verdict.problem is None:
            try:
                if record.scores is not None:
                    self._verify_scores(record, verdict)
                if verdict.problem is None and record.tokens:
                    self._verify(record, epochs, verdict)
            except KeyError as error:
                verdict.problem = f"a version that nobody sent: {error}"
        if verdict.problem is None and not verdict.is_undecided and record.routes is not None:
            verdict.num_rows = len(record.routes)
        return verdict

    def weights_of(self, digest):
        return self._weights_of(digest, *self._adapter)

    def wrong_row(self, sequence, first, num_brought):
        """(position, excess) of the first position in the sequence's last pass whose routes its router did not choose;
        (None, 0): none. Routes that the request brought do not count."""
        (wrong,) = numpy.nonzero(sequence.excess > self.router_tolerance)
        wrong = wrong[wrong + first >= num_brought]
        return (int(wrong[0]) + first, sequence.excess[wrong[0]]) if len(wrong) else (None, 0.0)

    def is_ambiguous(self, sequence):
        """Whether a router of the last pass chose between two experts so close that rounding may exchange them."""
        return bool((sequence.margin <= self.router_tolerance).any())

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

    def _verify_scores(self, record, verdict):
        """Checks that the version of the first span has computed all scores, over its own KV alone."""
        num = len(record.prompt) - record.score_start
        if len(record.scores) != num or len(record.ids_scores) != num * len(record.score_ids):
            verdict.problem = f"{len(record.scores)} scores of {num} prompt tokens"
            return
        if not record.spans:
            verdict.problem = "scores of no version"
            return
        epoch, digest, _, kv_min, kv_max = record.spans[0]
        if num and not kv_min == kv_max == epoch:
            verdict.problem = f"scores of epoch {epoch} over KV of [{kv_min}, {kv_max}]"
            return
        if not num:
            return
        first = record.score_start - 1
        sequence = Sequence(self.oracle, len(record.prompt))
        known = routed.Known(record, self.oracle.config)
        rows = known.rows(0, len(record.prompt) - 1, len(record.prompt))
        logits = self.oracle.forward(sequence, self.weights_of(digest), record.prompt[:-1], first, rows)
        position, excess = self.wrong_row(sequence, 0, known.num_brought)
        if position is not None:
            verdict.problem = f"a router of epoch {epoch} prefers others by {excess:.6f} at prompt token {position}"
            return
        logprobs = log_softmax(logits)
        wanted = [record.scores]
        right = [logprobs[numpy.arange(num), record.prompt[record.score_start :]]]
        if record.score_ids:
            wanted.append(record.ids_scores)
            right.append(logprobs[:, record.score_ids].ravel())
        for told, computed in zip(wanted, right):
            errors = numpy.abs(computed - numpy.asarray(told, dtype=numpy.float64))
            (wrong,) = numpy.nonzero(~(errors <= self.tolerance))
            if len(wrong) and self.is_ambiguous(sequence):
                verdict.is_undecided = True
                return
            if len(wrong):
                at = record.score_start + int(wrong[0]) * num // len(told)
                verdict.problem = (
                    f"the score of prompt token {at} is off by {errors[wrong[0]]:.6f} under epoch {epoch}, "
                    f"and {len(wrong)} of {len(told)} are"
                )
                return
            verdict.largest_error = max(verdict.largest_error, float(errors.max(initial=0.0)))
        verdict.num_scored = num

    def _verify(self, record, epochs, verdict):
        known = {**epochs, **{span[0]: span[1] for span in record.spans}}
        if any(kv_min not in known for _, _, _, kv_min, _ in record.spans):
            verdict.is_undecided = True  # a version served too briefly: its digest was never seen
            return
        runs, begin = [], 0
        for epoch, _, count, kv_min, kv_max in _joined(record.spans):
            runs.append((epoch, kv_min, kv_max, begin, begin + count))
            begin += count
        search = _Search(self, record, known, runs, verdict)
        if search.explains(0, 0, None, [], record.retractions):
            if record.logprobs is not None or record.is_greedy:
                verdict.num_verified = len(record.tokens)
                verdict.largest_error = max(verdict.largest_error, search.largest_error)
        elif search.is_cut_short or search.is_ambiguous or _has_unseen(record.spans, known):
            verdict.is_undecided = True
        else:
            verdict.problem = f"{search.furthest[1]} ({verdict.num_hypotheses} histories)"

    def count_good(self, record, digest, ids, sequence, begin, end, rows=None, num_brought=0):
        """(the number of right tokens from `begin` on, the error in the next token, the largest error)"""
        at = len(record.prompt) - 1 + begin
        logits = self.oracle.forward(sequence, self.weights_of(digest), ids[at : at + end - begin], 0, rows)
        logprobs = log_softmax(logits)
        chosen = numpy.asarray(record.tokens[begin:end])
        of_chosen = logprobs[numpy.arange(len(chosen)), chosen]
        checks, errors = [], numpy.zeros(len(chosen))
        position, excess = self.wrong_row(sequence, at, num_brought)
        if position is not None:
            is_wrong = numpy.arange(at, at + len(chosen)) == position
            checks.append((is_wrong, "a router prefers other experts by %.6f", numpy.full(len(chosen), excess)))
        checks.append((~numpy.isfinite(of_chosen), "it is of logits that are not finite, %f", of_chosen))
        if record.logprobs is not None:
            errors = numpy.abs(of_chosen - numpy.asarray(record.logprobs[begin:end]))
            errors[~numpy.isfinite(errors)] = numpy.inf
            checks.append((errors > self.tolerance, "logprob is off by %.6f", errors))
        if record.is_greedy:
            gaps = logprobs.max(axis=-1) - of_chosen
            checks.append((gaps > 2 * self.tolerance, "another token is more probable by %.6f", gaps))
        if record.top_k:
            larger = (logprobs > of_chosen[:, None] + 2 * self.tolerance).sum(axis=-1)
            wrong = larger >= record.top_k
            checks.append((wrong, "%d tokens are more probable than one of the top k", larger))
        good, why = len(chosen), None
        for is_wrong, text, values in checks:
            (where,) = numpy.nonzero(is_wrong)
            if len(where) and where[0] < good:
                good = int(where[0])
                why = f"token {begin + good} ({chosen[good]}): " + text % values[good]
        return good, why, float(errors[:good].max(initial=0.0))


class _Search:
    """Searches depth first: assumes that the request continues undisturbed, then that it was retracted."""

    def __init__(self, replay, record, known, runs, verdict):
        self.replay, self.record, self.known, self.runs, self.verdict = replay, record, known, runs, verdict
        self.whole = record.prompt + record.tokens
        self.furthest = (-1, "")  # the token that no history explains, and why
        self.largest_error = 0.0
        self.is_cut_short = False
        self.is_ambiguous = False
        self.routes = routed.Known(record, replay.oracle.config)
        self.deadline = time.process_time() + SEARCH_CPU_S

    def explains(self, index, begin, sequence, versions, resets):
        """Whether some history explains the tokens from `begin` on, where runs[index] contains `begin`. `versions` are
        those of the earlier positions. `resets`: reported retractions that the history does not contain yet."""
        if index == len(self.runs):
            return True
        epoch, kv_min, kv_max, _, end = self.runs[index]
        good = 0
        if begin:
            if _is_range(versions, epoch, kv_min, kv_max):
                mark = sequence.mark()
                good = self._good(sequence, epoch, begin, end)
                if begin + good == end:
                    if self.explains(index + 1, end, sequence, versions + [epoch] * good, resets):
                        return True
                sequence.return_to(mark)
            else:
                held = versions + [epoch]
                self._fail(begin, epoch, f"KV of {min(held)} to {max(held)}, said to be {kv_min} to {kv_max}")
            if not resets:
                return False
        for cut in range(min(begin + good, end - 1), begin - 1, -1):  # retracted before this token
            before = versions + [epoch] * (cut - begin)
            if self._explains_reset(index, cut, before, resets - (1 if begin else 0)):
                return True
        return False

    def _explains_reset(self, index, begin, before, resets):
        """explains() for a request that was retracted before token `begin`, so that all positions were computed again.
        Histories that explain the whole run are tried first: a wrong one may explain a few tokens by chance."""
        epoch, kv_min, kv_max, _, end = self.runs[index]
        record, at = self.record, len(self.record.prompt) - 1 + begin
        own = before if record.kv_tolerance != "never" else []
        span = (epoch, kv_min, kv_max)
        partly = []  # (tokens explained, prefix)
        for prefix in self._histories(at, span, own, is_first=not begin):
            self.verdict.num_hypotheses += 1
            if self.verdict.num_hypotheses > HYPOTHESES_MAX or time.process_time() > self.deadline:
                self.is_cut_short = True
                return False
            sequence, versions, is_right = self._computed(prefix, at + end - begin, is_first=not begin)
            if not is_right:
                continue
            good = self._good(sequence, epoch, begin, end)
            if begin + good < end:
                if good:
                    partly.append((good, prefix))
            elif self.explains(index + 1, end, sequence, versions + [epoch] * good, resets):
                return True
        partly.sort(key=lambda each: -each[0])
        for good, prefix in partly[:PARTLY_MAX] if resets else []:  # retracted a second time in the same run
            sequence, versions, _ = self._computed(prefix, at + end - begin, is_first=not begin)
            self._good(sequence, epoch, begin, begin + good)
            if self.explains(index, begin + good, sequence, versions + [epoch] * good, resets):
                return True
        # The cached prefix or the prompt's chunks may have more versions, or other cuts, than are tried.
        num = sum(kv_min <= each <= kv_max for each in self.known)
        if num > 3 or (num > 2 and (at > SHORT_MAX or record.kv_tolerance != "never")):
            self.is_cut_short = True
        return False

    def _histories(self, length, span, own, is_first):
        """The possible histories of the positions before a pass. Reported routes leave only one."""
        if not is_first or self.record.routes is None:
            return _prefixes(length, span, sorted(self.known), self.replay.page_size, self.record.cached, own)
        told = self.record.route_epochs[:length]
        if not self.known.keys() >= set(told):
            self.is_cut_short = True  # a version served too briefly: its digest was never seen
            return []
        if _is_range(told, *span):
            return [_runs(told)]
        self._fail(0, span[0], f"rows of epochs {sorted({*told})}, over KV that is said to be {span[1]} to {span[2]}")
        return []

    def _computed(self, prefix, capacity, is_first):
        """Computes the positions of `prefix`. Returns the sequence, the version of each position, and whether their
        routers may have chosen the reported routes. `is_first`: the rows were reported for these very passes."""
        sequence, versions, is_right = Sequence(self.replay.oracle, capacity), _versions(prefix), True
        num_told = len(versions) if is_first else self.routes.num_same(versions)
        for version, first, last in prefix:
            weights, rows = self.replay.weights_of(self.known[version]), self.routes.rows(first, last, num_told)
            self.replay.oracle.forward(sequence, weights, self.whole[first:last], last - first, rows)
            self.is_ambiguous |= self.replay.is_ambiguous(sequence)
            position, excess = self.replay.wrong_row(sequence, first, self.routes.num_brought)
            if position is not None:
                self._fail(0, version, f"a router prefers other experts by {excess:.6f} at position {position}")
                is_right = False
        return sequence, versions, is_right

    def _good(self, sequence, epoch, begin, end):
        at, num = len(self.record.prompt) - 1 + begin, len(self.whole)
        good, why, error = self.replay.count_good(
            self.record,
            self.known[epoch],
            self.whole,
            sequence,
            begin,
            end,
            self.routes.rows(at, at + end - begin, num),
            self.routes.num_brought,
        )
        self.is_ambiguous |= self.replay.is_ambiguous(sequence)
        if why:
            self._fail(begin + good, epoch, why)
        else:
            self.largest_error = max(self.largest_error, error)
        return good

    def _fail(self, token, epoch, why):
        if token > self.furthest[0]:
            self.furthest = (token, f"epoch {epoch}: {why}")


def _has_unseen(spans, known):
    """Whether a version whose digest is unknown may have computed some of the spans' KV."""
    return any(not known.keys() >= set(range(kv_min, kv_max)) for _, _, _, kv_min, kv_max in spans)


def _versions(prefix):
    return [version for version, first, last in prefix for _ in range(last - first)]


def _joined(spans):
    """Joins consecutive spans of one version and one range of KV, whatever their labels."""
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
    """The positions at which a prefix may change its version, the likeliest first."""
    likely = [cached, *range(page_size, length, page_size)]
    return [c for c in dict.fromkeys([*likely, *range(1, length + 1)]) if 0 < c <= length]


def _runs(versions):
    """[(version, first, last)] of a version per position."""
    runs = []
    for at, version in enumerate(versions):
        if runs and runs[-1][0] == version:
            runs[-1] = (version, runs[-1][1], at + 1)
        else:
            runs.append((version, at, at + 1))
    return runs


def _prefixes(length, span, epochs, page_size, cached, own):
    """Possible histories of positions [0, length) before a pass of `span`, (epoch, kv_min, kv_max), each a list of
    (version, first, last). First histories of one version; then those of the request's own cached prefix (`own`: its
    earlier versions); then those of two and of three versions."""
    epoch, kv_min, kv_max = span
    within = [each for each in epochs if kv_min <= each <= kv_max]
    if kv_min == kv_max == epoch:
        yield [(epoch, 0, length)] if length else []
        return
    for kept in range(len(own) // page_size * page_size, 0, -page_size):
        versions = own[:kept] + [epoch] * (length - kept)
        if len(versions) == length and _is_range(versions, epoch, kv_min, kv_max):
            yield _runs(versions)
    cuts = _cuts(length, page_size, cached)
    for first in within:
        for cut in cuts:
            if first != epoch and _is_range([first], epoch, kv_min, kv_max):
                yield [(first, 0, cut)] + ([(epoch, cut, length)] if cut < length else [])
    pages = cuts if length <= SHORT_MAX else cuts[: length // page_size + 1]
    for first in within:
        for second in within:
            if first == second or second == epoch or not _is_range([first, second], epoch, kv_min, kv_max):
                continue
            for cut in pages:
                for other in cuts:
                    if other > cut:
                        last = [(epoch, other, length)] if other < length else []
                        yield [(first, 0, cut), (second, cut, other)] + last
