"""The run's report: counts, a line per minute, findings with what led to them, the summary."""

import collections
import pathlib
import sys
import threading
import time
import traceback

ACTIONS_MAX = 60  # the latest events, printed with a finding
PROBLEMS_MAX = 50  # further findings are only counted


class Report:
    """Thread: any."""

    def __init__(self, out_dir, reproduce):
        self.out_dir = pathlib.Path(out_dir)
        self.reproduce = reproduce  # the command line of the current episode
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._counts = collections.defaultdict(collections.Counter)
        self._actions = collections.deque(maxlen=ACTIONS_MAX)
        self.problems = []
        self.num_problems = 0
        self.oracle_cpu_s = 0.0
        self.largest_error = {}  # arithmetic -> (error, tolerance)
        self._log = open(self.out_dir / "actions.log", "a")

    def seconds(self):
        return time.monotonic() - self._begin

    def count(self, group, name, number=1):
        with self._lock:
            self._counts[group][name] += number

    def total(self, group, name=None):
        with self._lock:
            return self._counts[group][name] if name else sum(self._counts[group].values())

    def act(self, text):
        line = f"{self.seconds():9.3f} {text}"
        with self._lock:
            self._actions.append(line)
            print(line, file=self._log, flush=True)

    def problem(self, text, trace=False):
        """A finding. The run ends after its episode, with exit code 1."""
        if trace:
            text += "\n" + traceback.format_exc()
        with self._lock:
            self.num_problems += 1
            if self.num_problems > PROBLEMS_MAX:
                return
            self.problems.append(text)
            actions = "\n    ".join(list(self._actions)[-20:])
            told = f"\nFOUND at {self.seconds():.1f} s: {text}\n  before it:\n    {actions}\n"
            told += f"  again: {self.reproduce}\n"
            print(told, file=self._log, flush=True)
        print(told, file=sys.stderr, flush=True)

    def minute(self, episode):
        """Prints the line of a minute."""
        print(
            f"{self.seconds() / 60:6.1f} min, tree {episode}: {self.total('oracle', 'verified')} tokens verified, "
            f"{self.total('requests')} requests, {self.total('updates')} updates ({self.total('refused')} refused), "
            f"{self.total('faults')} faults, {self.total('deaths')} deaths, {self.num_problems} findings",
            flush=True,
        )

    def summary(self):
        verified, cpu_s = self.total("oracle", "verified"), self.oracle_cpu_s
        print(
            f"\n{verified} tokens verified in {self.seconds() / 60:.1f} minutes, "
            f"{verified / max(cpu_s, 1e-3):.0f} per CPU second of the oracle"
        )
        for rounding, (error, tolerance) in sorted(self.largest_error.items()):
            print(f"  {rounding}: the largest error of a logprob was {error:.2g} of {tolerance:.2g} allowed")
        titles = {
            "oracle": "the oracle",
            "scorings": "scorings of prompts",
            "drafts": "drafts that passes verified",
            "adapters": "verified requests with adapters",
            "requests": "requests by client and ending",
            "updates": "updates that took effect",
            "refused": "calls that did not",
            "faults": "faults",
            "deaths": "deaths",
            "trees": "trees",
            "skipped": "not done here",
        }
        for group, title in titles.items():
            if self._counts[group]:
                print(f"{title}: {sum(self._counts[group].values())}")
                for name, number in sorted(self._counts[group].items()):
                    print(f"  {number:8d}  {name}")
        if self.problems:
            print(f"\n{self.num_problems} findings; logs: {self.out_dir}")
            for text in self.problems:
                print(f"  {text.splitlines()[0][:400]}")
            print(f"again: {self.reproduce}")
        else:
            print("\nclean")
        sys.stdout.flush()
