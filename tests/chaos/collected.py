"""Calls without a session that may take effect together, judged by the answers that their trainers got.

Trainers write a line before and after each call without a session, and before and after each call that
publishes such calls. So the lines show what a trainer knew when it died. A version that takes effect between
the two lines of a publishing call has all or none of each trainer's calls that were answered as collected
before (docs/weights.md, "Calls without a session"). The version may also have calls that were in progress. If
another client's pause, begin or continue was answered in between, earlier calls may have been lost, and the
answers said so.
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import threading
import time

PUBLISHES_MAX = 24  # the latest publishing calls: only their versions may still be seen
AGE_MAX_S = 100.0  # the longest time from a call to the continue that ends its pause
REFUSED = ("aborted", "failed_precondition", "invalid_argument", "already_exists", "http_400", "http_409")


def write(path, **event):
    """Appends a line; any process may."""
    line = json.dumps({"at": time.monotonic(), **event}) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@dataclasses.dataclass
class Call:
    """A call that brings weights; `keys`: {name: digest} of its tensors."""

    keys: dict
    sent_at: float = math.inf
    collected_at: float = math.inf
    is_refused: bool = False  # it was not collected, and its trainer has sent it again


@dataclasses.dataclass
class Publish:
    """A call that publishes collected calls, up to its answer."""

    who: str
    begin: float
    end: float = math.inf
    is_continue: bool = False  # a successful continue: earlier collected calls are then in effect, or lost


class CallBook:
    """Thread: any."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self._lock = threading.Lock()
        self._calls = {}  # who -> [Call]
        self._publishes = []
        self._news = []  # (at, who): an answered pause, begin or continue
        self._alone = []  # keys of calls whose own answer said that they are in effect
        self._lives = []  # start times of the tree's lives: a new life loses the calls collected before it
        self._offset = 0
        self._spoilt = {}  # who -> when that trainer learned that http_proc had refused one of its calls
        self._told = []  # digests that answers to calls named, in the order of the answers

    def register(self, who, calls):
        """Registers the calls that a trainer may make, before it starts."""
        with self._lock:
            self._calls[who] = [Call(keys) for keys in calls]

    def begin_life(self, at):
        with self._lock:
            self._lives.append(at)

    def _read(self):
        if not self.path.exists():
            return
        with open(self.path) as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._offset += len(whole.encode())
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, event):
        at, who, what = event["at"], event["who"], event["what"]
        if event.get("digest"):
            self._told = [*self._told, event["digest"]][-PUBLISHES_MAX:]
        if what == "publishes":
            self._publishes = [*self._publishes, Publish(who, at)][-PUBLISHES_MAX:]
        elif what in ("published", "paused", "begun"):
            for publish in self._publishes:
                if what == "published" and publish.who == who and publish.end == math.inf:
                    publish.end, publish.is_continue = at, event.get("is_continue", False)
            self._news.append((at, who))
        elif what == "spoilt":
            self._spoilt[who] = at
        else:
            call = self._calls[who][event["call"]]
            if what == "sent":
                call.sent_at, call.is_refused = min(call.sent_at, at), False  # a trainer may send a refused call again
            elif what == "collected":
                call.collected_at = min(call.collected_at, at)
            elif what == "alone":
                self._alone = [*self._alone, call.keys][-PUBLISHES_MAX:]
            elif what == "refused":
                call.is_refused = call.collected_at == math.inf

    def told(self):
        """Digests of versions that answers named: a partial version may be based on each."""
        with self._lock:
            self._read()
            return list(self._told)

    def candidates(self):
        """Lists of {name: digest}: all sets of tensors that may have taken effect as one version, on top of the
        previous one."""
        with self._lock:
            self._read()
            under_way = [
                call.keys
                for calls in self._calls.values()
                for call in calls
                if call.sent_at < math.inf and call.collected_at == math.inf and not call.is_refused
            ]
            found = [*self._alone, *under_way]
            for publish in reversed(self._publishes):
                found += self._candidates_of(publish)
        return list({json.dumps(keys, sort_keys=True): keys for keys in found if keys}.values())

    def _candidates_of(self, publish):
        """The sets of one trainer: each trainer has labels of its own, so calls of two trainers are
        never one version.
        """
        since = max(
            (each.begin for each in self._publishes if each.is_continue and each.end < publish.begin),
            default=-math.inf,
        )
        found = []
        for calls in self._calls.values():
            for chosen in self._sets_of(calls, publish, since):
                keys = {}
                for call in chosen:
                    keys.update(call.keys)
                found.append(keys)
        return found

    def _sets_of(self, calls, publish, since):
        """The possible sets of a trainer's calls that `publish` has published. Calls before `since` do not count."""
        life = max((at for at in self._lives if at <= publish.begin), default=-math.inf)
        calls = [call for call in calls if call.sent_at > max(since, publish.begin) - AGE_MAX_S]
        if not any(max(since, life) < call.collected_at <= publish.end for call in calls):
            # Calls that are answered later, or never: the tree may have received them before the publishing call.
            calls = [call for call in calls if call.sent_at > max(since, life)]
        known = [call for call in calls if life < call.collected_at <= publish.begin]
        beside = [
            call
            for call in calls
            if call.sent_at < math.inf
            and call.sent_at <= publish.end
            and not call.is_refused
            and call.collected_at > publish.begin
        ]
        cuts = [-math.inf, *(at for at, other in self._news if at <= publish.begin)]
        sets = []
        for cut in cuts:
            after = [call for call in known if call.collected_at > cut]
            for number in range(len(beside) + 1):
                for more in itertools.combinations(beside, number):
                    if after or more:
                        sets.append([*after, *more])
        return list({tuple(map(id, each)): each for each in sets}.values())

    def may_name_several(self, who):
        """Whether the calls with this label may have become several versions. Their trainer can tell: a call reached a
        generating tree, or another client published the first calls."""
        with self._lock:
            self._read()
            calls = [call for call in self._calls.get(who, []) if call.sent_at < math.inf]
            if any(call.collected_at == math.inf and not call.is_refused for call in calls):
                return True
            return bool(calls and self._others_amid(who, calls))

    def _others_amid(self, who, calls):
        """Other clients' calls that may have published or dropped some of these calls before their trainer published
        them."""
        begin = min(call.sent_at for call in calls)
        own_end = max((each.end for each in self._publishes if each.who == who), default=math.inf)
        others = [at for at, other in self._news if other != who and begin <= at <= own_end]
        others += [each for each in self._publishes if each.who != who and each.end >= begin]
        return others + [each for each in self._lives if each >= begin]

    def problem_of(self, who, keys):
        """The error in the version that the answer to this trainer's own continue named, or None."""
        with self._lock:
            self._read()
            calls = [call for call in self._calls[who] if call.collected_at < math.inf]
            if not calls:
                return None
            others = self._others_amid(who, calls)
        if others:
            return None
        missing = [call for call in calls if any(keys.get(name) != key for name, key in call.keys.items())]
        spoilt_at = self._spoilt.get(who, -math.inf)
        lacking = [call for call in calls if call.collected_at < spoilt_at and call not in missing]
        if lacking:
            return (
                f"the version that its continue published has {len(lacking)} calls of a collection of which a call "
                "was refused"
            )
        if not missing:
            return None
        return f"the version that its continue published lacks {len(missing)} of {len(calls)} collected calls"
