"""Plans, starts, watches and stops a tree of processes.

Thread: one. Everything waits in Tree._wait, always with a deadline.
"""

import atexit
import dataclasses
import os
import selectors
import signal
import time
import typing

import http_limits
import programs
from child import Child, Version
from memory import KV_SHARE
from problem import EXIT_DIED, EXIT_OK, EXIT_START, EXIT_USAGE, Problem

# The most seconds of each step of an end. A process that is told to stop answers its open requests first.
FAREWELL_S = 2.0  # after a death: for the tokenizer to answer every open request with an error
STOP_S = 5.0  # from "stop" to SIGTERM, all stages together
STAGE_S = 0.5  # the least for each stage, even after STOP_S
TERM_S = 1.0  # from SIGTERM to SIGKILL
FAILURES_S = 0.2  # at start: for other processes to report their problems, too
WATCH_S = 1.0  # between two checks for stopped processes; events end the wait
PROGRESS_S = 5.0  # between two lines about a slow start

# A process stops before the processes whose answers it needs, so that none misses a peer that was told to stop.
STOP_ORDER = (("http_proc",), ("tokenizer_proc",), ("scheduler_proc",), ("detokenizer_proc", "tp_worker"))
# The first of these is the likeliest cause of several deaths: a worker ends its scheduler, not the reverse.
BLAME_ORDER = ("tp_worker", "detokenizer_proc", "tokenizer_proc", "scheduler_proc", "http_proc")


def cores_per_worker(num_workers):
    """Divides the cores that this program may use evenly; each worker has at least one thread."""
    return max(1, len(os.sched_getaffinity(0)) // num_workers)


def cache_dir():
    """Returns the directory of files that can be computed again (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "pitstop")


def _flags(options, *names):
    """Returns --name=value for each option that was given; the others are the process's own defaults."""
    given = [(name, getattr(options, name)) for name in names]
    return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def _door_flags(options):
    """Returns the flags of doors for other machines. A tree for one call has no such doors."""
    if not hasattr(options, "door_keys"):
        return []
    return _flags(options, "tcp_door", "admin_tcp_door", "door_keys")


def nodes_of(options):
    """Returns how many machines a replica spans. A tree for one call has one."""
    return getattr(options, "nodes", None) or 1


def is_head(options):
    """Returns whether this machine has the doors and the scheduler; other machines have only workers."""
    return nodes_of(options) == 1 or options.node_rank == 0


def ranks_here(options):
    """Returns the ranks of each replica that have their worker on this machine."""
    num = options.tp // nodes_of(options)
    first = 0 if is_head(options) else options.node_rank * num
    return range(first, first + num)


def _node_flags(options):
    """Returns a worker's flags if the ranks are on several machines."""
    if nodes_of(options) == 1:
        return []
    flags = [f"--nodes={options.nodes}", f"--node-rank={options.node_rank}"]
    # Machines are started by hand: the first ones wait for the others, and name those that are missing.
    flags.append(f"--attach-timeout-ms={round(options.start_timeout * 900)}")
    return flags if is_head(options) else flags + _flags(options, "head", "node_key")


def _node_door_flags(options):
    """Returns the scheduler's flags if the ranks are on several machines."""
    if nodes_of(options) == 1:
        return []
    return [f"--nodes={options.nodes}", f"--node-door={options.head}", f"--door-keys={options.door_keys}"]


def _keep_flags(options):
    """Returns the flags of the directory for committed versions. A tree for one call keeps none."""
    return _flags(options, "keep_committed") if hasattr(options, "keep_committed") else []


def _http_flags(options):
    flags = _flags(
        options, "host", "port", "tool_call_parser", "reasoning_parser", "return_routed_experts", "cors_origin"
    )
    for name in ("insecure", "incremental_streaming_output", "return_sampling_mask"):
        if getattr(options, name):
            flags.append(f"--{name.replace('_', '-')}")
    flags += [f"--allowed-host={name}" for name in options.allowed_host]
    flags += [f"--served-model-name={name}" for name in options.served_model_names]
    flags.append(f"--bundled-models={programs.MODELS}")
    return flags + http_limits.flags(options)


class LostWeights(Problem):
    """The weights to be loaded are missing, or others are in their place."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights that the workers load, and their label."""

    path: str = ""  # a checkpoint; empty: the model's own
    digest: str = ""  # the digest that these weights must have; empty: any
    epoch: int = 1
    label: str = ""
    lost: typing.Optional[Version] = None  # nothing is loaded: the version that was to be loaded
    why: str = ""  # the reason why it could not be loaded


@dataclasses.dataclass(frozen=True)
class Restart:
    """For a restarted tree: why it was restarted, and its callers' unfinished work."""

    why: str = ""  # empty: the first tree
    unfinished: str = ""  # the last report of the previous tokenizer
    lost_adapters: str = ""  # the file that lists the adapters loaded before the restart; empty: none


def _weights_flags(weights):
    return [f"--weights={weights.path}"] if weights.path else []


def _tokenizer_flags(options, weights, restart):
    flags = _flags(options, "model", "dp", "scheduling")
    flags += [f"--served-model-name={name}" for name in options.served_model_names]
    flags += _weights_flags(weights)
    if weights.lost is not None:
        flags += [f"--lost-why={weights.why}", f"--lost-label={weights.lost.label}"]
        flags += [f"--lost-digest={weights.lost.digest}", f"--lost-path={weights.lost.path}"]
    if restart.why:
        flags += [f"--restart-why={restart.why}", f"--unfinished={restart.unfinished}"]
    if restart.lost_adapters:
        # Half of the start's timeout; the other half is for the weights.
        flags += [f"--lost-adapters={restart.lost_adapters}", f"--bring-back-ms={round(options.start_timeout * 500)}"]
    return flags + _keep_flags(options) + _door_flags(options)


def _scheduler_flags(options, weights, restart, replica):
    flags = [f"--replica={replica}", f"--epoch={weights.epoch}", f"--label={weights.label}"]
    flags.append(f"--digest={weights.digest}")
    flags += _flags(
        options,
        "tp",
        "page_size",
        "chunked_prefill_size",
        "max_running_requests",
        "max_queued_requests",
        "max_adapters",
        "adapter_memory",
        "state_checkpoint_tokens",
        "speculate",
        "draft_memory",
        "session_memory",
        "scheduling",
    )
    if restart.lost_adapters:
        flags.append(f"--lost-adapters={restart.lost_adapters}")
    return flags + [f"--step-timeout-s={options.step_timeout:g}", *_node_door_flags(options)]


def _worker_flags(options, weights, replica, rank):
    num_here = len(ranks_here(options)) * options.dp
    threads = options.threads or cores_per_worker(num_here)
    flags = [f"--replica={replica}", f"--replicas={options.dp}", f"--rank={rank}", f"--threads={threads}"]
    flags.append(f"--step-timeout-s={options.step_timeout:g}")
    flags.append(f"--kv-share={KV_SHARE / options.dp:g}")
    flags += [f"--epoch={weights.epoch}", *_weights_flags(weights), *_node_flags(options)]
    if options.device != "cpu":
        here = ranks_here(options)
        flags.append(f"--gpu={replica * len(here) + rank - here.start}")
    if options.device == "auto":
        flags.append(f"--num-gpus={num_here}")
    if options.deterministic:
        flags.append("--deterministic")
    if options.no_graphs:
        flags.append("--no-graphs")
    if options.device != "cpu" and options.tuning_dir != "none":
        flags.append(f"--tuning-dir={options.tuning_dir or cache_dir()}")
    if options.ignore_extra_tensors:
        flags.append("--ignore-extra-tensors")
    if replica == 0:  # one replica keeps the version for all
        flags += _keep_flags(options)
    if weights.lost is not None or (options.wait_for_initial_weights and not weights.path):
        flags.append("--wait-for-initial-weights")
    return flags + _flags(
        options,
        "model",
        "tp",
        "device",
        "mem_fraction",
        "update_mode",
        "all_reduce",
        "max_total_tokens",
        "page_size",
        "max_running_requests",
        "chunked_prefill_size",
        "max_adapter_rank",
        "adapter_memory",
        "state_checkpoints",
        "compute",
        "ep",
        "expert_weights",
        "load_format",
        "stage_share",
    )


def plan(options, run_dir, weights=Weights(), restart=Restart()):
    """Returns [(kind, name, command)] of every process, from the parsed flags of serve."""
    processes = []
    if is_head(options):
        processes.append(("tokenizer_proc", "tokenizer_proc", _tokenizer_flags(options, weights, restart)))
        processes.append(("detokenizer_proc", "detokenizer_proc", _flags(options, "model")))
    for replica in range(options.dp):
        if is_head(options):
            scheduler = _scheduler_flags(options, weights, restart, replica)
            processes.append(("scheduler_proc", f"scheduler_proc[{replica}]", scheduler))
        for rank in ranks_here(options):
            worker = _worker_flags(options, weights, replica, rank)
            processes.append(("tp_worker", f"tp_worker[{replica}.{rank}]", worker))
    if is_head(options) and not getattr(options, "no_http", True):  # a tree for one call has no HTTP
        processes.append(("http_proc", "http_proc", _http_flags(options)))
    common = [f"--run-dir={run_dir}", f"--log-level={options.log_level}"]
    return [(kind, name, [programs.program(kind), *flags, *common]) for kind, name, flags in processes]


class Signals:
    """Turns SIGINT, SIGTERM, SIGHUP and SIGQUIT into a readable descriptor, so that they end a wait.

    This lasts until the program ends, so a second Ctrl-C while a tree is stopping does not kill the program.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

    def __init__(self):
        self.is_asked_to_end = False
        self.fd, write_fd = os.pipe()
        for fd in (self.fd, write_fd):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in self.NUMBERS:
            if signal.getsignal(number) != signal.SIG_IGN:  # ignored by nohup, or as a background job
                signal.signal(number, self._take)
                # While it ends, the interpreter restores its own handlers, but not those of ignored signals.
                atexit.register(signal.signal, number, signal.SIG_IGN)

    def _take(self, _number, _frame):
        self.is_asked_to_end = True


class Asked(Exception):
    """The user asked for the end during a wait."""


def _death_at_start(child):
    """Describes how a process died at start without a FAILED line."""
    if child.exit_code() == EXIT_USAGE:
        return "refused its flags; the line above says which"
    return f"died at start: {child.how_it_ended()}"


def _version_in(line):
    """Returns the version in a scheduler's line about an adapter. Within a tree, a newer one has a larger number."""
    return int(line.split("\t")[1])


class Tree:
    """Owns: the processes. After stop() there are none."""

    def __init__(self, processes, signals, say, stall_timeout_s):
        self._signals = signals
        self._stall_timeout_s = stall_timeout_s
        self._say = say  # one line about a problem or about progress
        self._selector = selectors.DefaultSelector()
        self._on_readable(signals.fd, lambda: os.read(signals.fd, 4096))
        self.children = []
        try:
            for kind, name, command in processes:
                try:
                    child = Child(kind, name, command)
                except OSError as error:
                    raise Problem.of(f"{name} cannot be started", error, EXIT_START) from error
                self.children.append(child)
                self._on_readable(child.ready_fd, lambda child=child: self._listen(child))
                self._on_readable(child.pidfd, lambda child=child: self._bury(child))
        except BaseException:
            self.kill()
            raise

    def _on_readable(self, fd, action):
        self._selector.register(fd, selectors.EVENT_READ, action)

    def _listen(self, child):
        if not child.read_ready():
            self._selector.unregister(child.ready_fd)

    def _bury(self, child):
        if child.has_ended():  # collects its status, so that it is no zombie
            self._selector.unregister(child.pidfd)

    def _wait(self, deadline):
        """Waits until an event or the deadline. Raises Asked at a signal."""
        for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
            key.data()
        if self._signals.is_asked_to_end:
            raise Asked

    def wait_ready(self, timeout_s, says_each=False):
        """Waits until every process is ready. Problem: one cannot start; names it with its reason."""
        begin = time.monotonic()
        next_progress = begin + PROGRESS_S
        said = set()
        while True:
            waiting = [child for child in self.children if child.ready_line is None]
            failed = [child for child in self.children if child.failed_line or child.has_ended()]
            now = time.monotonic()
            for child in self.children if says_each else ():
                if child not in waiting and child.name not in said:
                    said.add(child.name)
                    self._say(f"{child.name} is ready ({len(said)} of {len(self.children)})")
            if failed:
                self._raise_start_problem()
            if not waiting:
                return
            names = ", ".join(child.name for child in waiting)
            if now > begin + timeout_s:
                raise Problem(f"not ready after {timeout_s:.0f} s: {names}", EXIT_START)
            if now >= next_progress:
                self._say(f"waiting for {names} ({now - begin:.0f} s)")
                next_progress += PROGRESS_S
            self._wait(min(next_progress, begin + timeout_s + 0.001))

    def _raise_start_problem(self):
        """Prints each reason once, the last one as the Problem."""
        deadline = time.monotonic() + FAILURES_S
        while time.monotonic() < deadline:
            self._wait(deadline)
        reasons = {}  # the reason -> the first process that gave it
        for child in self.children:
            if child.failed_line and not self._names_a_sibling(child.failed_line):
                reasons.setdefault(child.failed_line, child)
        if not reasons:  # no process gave a reason: reports the deaths themselves
            for child in self.children:
                if child.has_ended():
                    reasons.setdefault(_death_at_start(child), child)
        lost = [child.lost_line for child in self.children if child.lost_line]
        if lost:
            raise LostWeights(lost[0], EXIT_START)
        *others, last = [f"{child.name}: {reason}" for reason, child in reasons.items()]
        for line in others:
            self._say(line)
        raise Problem(last, EXIT_START)

    def _names_a_sibling(self, line):
        """ "rank 0 (pid 71) is gone" is a consequence of the death of 71, not a reason of its own."""
        return any(f"(pid {child.pid})" in line for child in self.children)

    def watch(self, guest=None):
        """Waits until a process dies, and returns its Child. Returns None if `guest` (a Popen) ends, or a process asks
        for the end (the admin door's shutdown)."""
        if guest is not None:
            guest_fd = os.pidfd_open(guest.pid)
            self._on_readable(guest_fd, guest.poll)
        stopped_since = {}  # child -> when it was first seen to be stopped
        try:
            while True:
                self._end_stalled(stopped_since)
                ended = [child for child in self.children if child.has_ended()]
                if ended:
                    return min(ended, key=self._how_late_in_a_chain)
                if guest is not None and guest.poll() is not None:
                    return None
                if any(child.end_line is not None for child in self.children):
                    return None
                self._wait(time.monotonic() + WATCH_S)
        finally:
            if guest is not None:
                self._selector.unregister(guest_fd)
                os.close(guest_fd)

    def _end_stalled(self, stopped_since):
        """Kills processes that have been stopped for too long: a hanging tree helps nobody."""
        now = time.monotonic()
        for child in self.children:
            if not child.is_stopped():
                stopped_since.pop(child, None)
            elif now - stopped_since.setdefault(child, now) > self._stall_timeout_s:
                self._say(f"{child.name} was stopped for {self._stall_timeout_s:g} s")
                child.send_signal(signal.SIGKILL)

    def _how_late_in_a_chain(self, dead):
        """A sort key for deaths that are seen together, the likely first cause first.

        A death causes others: a scheduler ends when its worker is gone. The first cause was killed by a signal, or at
        least names no other process in its FAILED line.
        """
        was_killed, blames = dead.exit_code() < 0, self._names_a_sibling(dead.failed_line or "")
        return (not was_killed, blames, BLAME_ORDER.index(dead.kind))

    def read_all(self):
        """Reads the processes' lines so far."""
        for child in self.children:
            child.read_ready()

    def url(self):
        """Returns where HTTP listens; None: it does not."""
        for child in self.children:
            if child.kind == "http_proc":
                return child.ready_line
        return None

    def doors(self):
        """Returns where the doors listen for other machines, by name: {"data": "tcp://..."}."""
        return {name: place for child in self.children for name, place in child.doors.items()}

    def version(self):
        """Returns the Version that serves, from the tokenizer's last report; None: no report yet."""
        said = [child.version for child in self.children if child.version is not None]
        return said[-1] if said else None

    def unfinished(self):
        """Returns the callers' unfinished work, from the tokenizer's last report; None: no report yet."""
        said = [child.unfinished for child in self.children if child.unfinished is not None]
        return said[-1] if said else None

    def adapters(self):
        """Returns the schedulers' reports about adapters: {name: the line of its version; None: it was unloaded}."""
        said = {}
        for child in self.children:
            for name, line in child.adapters.items():
                # A slower replica may have reported an older version, which new requests do not get any more.
                said[name] = max(filter(None, (said.get(name), line)), key=_version_in, default=None)
        return said

    def say_farewell(self, dead):
        """Lets the tokenizer tell every open request which process died, and end by itself."""
        for child in self.children:
            if child.kind == "tokenizer_proc":
                child.tell(f"died {dead.name} {dead.how_it_ended()}")
                self._wait_for_end([child], FAREWELL_S)

    def stop(self):
        """Ends every process, gently as long as time remains. Signals meanwhile change nothing."""
        deadline = time.monotonic() + STOP_S
        for kinds in STOP_ORDER:
            stage = [child for child in self.children if child.kind in kinds]
            for child in stage:
                child.tell("stop")
            self._wait_for_end(stage, max(STAGE_S, deadline - time.monotonic()))
        late = [child for child in self.children if not child.has_ended()]
        for child in late:
            self._say(f"{child.name} did not stop in time")
            child.send_signal(signal.SIGTERM)
        self._wait_for_end(late, TERM_S)
        self.kill()

    def kill(self):
        """Kills at once: no process is left when it returns."""
        for child in self.children:
            child.send_signal(signal.SIGKILL)
        for child in self.children:
            while not child.has_ended():  # SIGKILL cannot be refused
                self._wait_for_end([child], 1.0)
            child.close()
        self.children = []
        self._selector.close()

    def _wait_for_end(self, children, timeout_s):
        deadline = time.monotonic() + timeout_s
        while any(not child.has_ended() for child in children):
            if time.monotonic() >= deadline:
                return
            try:
                self._wait(deadline)
            except Asked:
                pass  # the end is in progress already; a tree that was to be restarted stays down


def exit_code_of(dead):
    return EXIT_DIED[dead.kind] if dead is not None else EXIT_OK
