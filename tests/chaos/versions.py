"""Which versions exist: all that trainers were told to send, by digest.

A version is registered before it is sent, so that it is known even if its trainer dies. A partial update's result
depends on the version that served at its commit, so the result is looked up by its digest.
"""

import json
import pathlib
import threading

import numpy

from . import weights
from .collected import CallBook

PARTIALS_MAX = 32  # the latest partial updates: only their commits may still be seen
SERVED_MAX = 64
PAIRS_MAX, PAIR_BASES_MAX = 40, 4  # limits of the search for two successive versions, the first one never seen
SCORED_MAX = 4000  # prompts under a version


class VersionBook:
    """Thread: any."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._tensors = {}  # digest -> array of a tensor
        self._digests = {}  # id of an array in _tensors -> digest
        self._versions = {}  # digest -> {name: tensor digest}
        self._shapes = {}
        self._partials = []  # {name: tensor digest}
        self.calls = CallBook(self.directory / "calls.log")
        self._served = []  # digests of versions that served: possible bases of partial updates

    def _key(self, name, bits):
        """A tensor's digest; each is computed once and kept on disk for the verifiers."""
        known = self._digests.get(id(bits))
        if known is not None:
            return known
        digest = weights.tensor_digest(name, bits)
        if digest not in self._tensors:
            self._tensors[digest] = bits
            numpy.save(self.directory / f"{digest}.npy", bits)
        self._digests[id(self._tensors[digest])] = digest
        return digest

    def _add_keys(self, keys):
        digest = weights.version_digest(self._shapes, keys)
        if digest not in self._versions:
            self._versions[digest] = keys
            path = self.directory / f"{digest}.json"
            path.with_suffix(".new").write_text(json.dumps(keys))
            path.with_suffix(".new").rename(path)
        return digest

    def add(self, tensors):
        """Adds a version. Returns its digest."""
        with self._lock:
            for name, bits in tensors.items():
                self._shapes[name] = bits.shape
            return self._add_keys({name: self._key(name, bits) for name, bits in tensors.items()})

    def add_partial(self, changes):
        """Some tensors, which may be committed on top of any version."""
        with self._lock:
            keys = {name: self._key(name, bits) for name, bits in changes.items()}
            if keys in self._partials:
                self._partials.remove(keys)
            self._partials = [*self._partials, keys][-PARTIALS_MAX:]

    def keys_of(self, tensors):
        """{name: digest} of some tensors. Keeps the tensors."""
        with self._lock:
            return {name: self._key(name, bits) for name, bits in tensors.items()}

    def keys_in(self, digest):
        with self._lock:
            return dict(self._versions[digest])

    def tensors(self, digest):
        """{name: array} of a known version."""
        with self._lock:
            return {name: self._tensors[key] for name, key in self._versions[digest].items()}

    def knows(self, digest):
        """Whether the version was sent. Also finds the results of partial updates."""
        with self._lock:
            if digest not in self._versions:
                self._find(digest, reversed(self._partials))
            if digest not in self._versions:
                self._find_collected(digest)
            if digest in self._versions and digest not in self._served:
                self._served = [digest, *self._served][:SERVED_MAX]
            return digest in self._versions

    def _find_collected(self, digest):
        """Finds the results of calls without a session. One or two earlier versions may have served without being seen."""
        candidates = self.calls.candidates()
        for told in self.calls.told():
            if told not in self._versions:
                self._find(told, [*reversed(self._partials), *candidates])
            if told in self._versions and told not in self._served:
                self._served = [told, *self._served][:SERVED_MAX]
        if digest not in self._versions:
            self._find(digest, candidates)
        if digest not in self._versions:
            latest = [*reversed(self._partials)][: PAIRS_MAX // 2]
            few = [*latest, *candidates[: PAIRS_MAX - len(latest)]]
            pairs = [{**first, **second} for first in few for second in few if first is not second]
            self._find(digest, pairs, PAIR_BASES_MAX)

    def _find(self, digest, changes, bases_max=None):
        changes = list(changes)
        for base in self._served[:bases_max]:
            for each in changes:
                keys = {**self._versions[base], **each}
                if weights.version_digest(self._shapes, keys) == digest:
                    self._add_keys(keys)
                    return


def load_version(directory, digest):
    """{name: array}, in a verifier. KeyError: unknown version."""
    directory = pathlib.Path(directory)
    try:
        keys = json.loads((directory / f"{digest}.json").read_text())
    except FileNotFoundError:
        raise KeyError(digest) from None
    return {name: numpy.load(directory / f"{key}.npy") for name, key in keys.items()}


class EpochBook:
    """The version of each epoch and label of a tree, from the first report of it. An epoch names one version for ever.
    So does a label here, as only one trainer gives it, unless that trainer was told of several versions."""

    def __init__(self, may_name_several=lambda label: False):
        self._may_name_several = may_name_several
        self._lock = threading.Lock()
        self._digests = {}
        self._labels = {}

    def see(self, epoch, digest):
        """Notes an epoch's digest. Returns the error, or None."""
        if not digest:
            return None
        with self._lock:
            known = self._digests.setdefault(epoch, digest)
        return None if known == digest else f"epoch {epoch} was {known} and is now {digest}"

    def see_label(self, label, digest):
        """Notes a label's digest. Returns the error, or None."""
        if not digest or not label:
            return None
        with self._lock:
            known = self._labels.setdefault(label, digest)
        if known == digest or self._may_name_several(label):
            return None
        return f"label '{label}' was {known} and is now {digest}"

    def all(self):
        with self._lock:
            return dict(self._digests)


class ScoreBook:
    """The bits of each prompt's scores under a version: all answers have the same (P6), whichever
    route asked for them and however the prompt was cut into chunks.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._known = {}  # (digest, prompt, adapter's digest) -> float32 by position, NaN: not scored yet
        self.num_compared = 0

    def see(self, record):
        """Notes a record's scores. Returns the error, or None. The verifiers check the number of scores."""
        if not record.spans or len(record.scores) != len(record.prompt) - record.score_start:
            return None
        key = (record.spans[0][1], tuple(record.prompt), record.adapter and record.adapter[2])
        if record.brought is not None:
            return None  # other routes give other bits
        scores = numpy.full(len(record.prompt), numpy.nan, numpy.float32)
        scores[record.score_start :] = record.scores
        with self._lock:
            known = self._known.pop(key, None)
            if known is None:
                known = numpy.full(len(record.prompt), numpy.nan, numpy.float32)
            self._known[key] = numpy.where(numpy.isnan(known), scores, known)
            while len(self._known) > SCORED_MAX:
                self._known.pop(next(iter(self._known)))
            both = ~numpy.isnan(known) & ~numpy.isnan(scores)
            self.num_compared += int(both.sum())
        (where,) = numpy.nonzero(both & (known.view(numpy.uint32) != scores.view(numpy.uint32)))
        if not len(where):
            return None
        at = int(where[0])
        return f"prompt token {at} was scored {known[at]!r} under the same version, and is {scores[at]!r} here"

    def prompts_of(self, digest, num):
        """The prompts scored last under this version, without an adapter."""
        with self._lock:
            found = [list(prompt) for each, prompt, adapter in self._known if (each, adapter) == (digest, None)]
            return found[-num:]
