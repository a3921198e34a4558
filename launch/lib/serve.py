"""serve runs a tree in its run directory, from the first process to the last, and again if asked."""

import copy
import ctypes
import dataclasses
import math
import os
import signal
import sys
import time
import urllib.parse

import descriptors
import hub
import memory
import model_check
import programs
import registry
from kept import KeptVersions
from model_files import ModelFiles
from problem import EXIT_OK, EXIT_PLACE, EXIT_USAGE, Problem
from run_dir import LOST_ADAPTERS, MODEL, RunDir
from tree import Asked, LostWeights, Restart, Signals, Tree, Weights, exit_code_of, is_head, plan, ranks_here

# With --restart the wait before each new attempt doubles up to the maximum; a tree that has served for STEADY_S resets
# the count. After RESTARTS_MAX attempts the launcher gives up.
RESTARTS_MAX = 5
BACK_OFF_S = 0.5
BACK_OFF_MAX_S = 30.0
STEADY_S = 60.0
PR_SET_PDEATHSIG = 1


def say(line):
    """Prints one line about a problem or about progress."""
    try:
        print(f"pitstop: {line}", file=sys.stderr, flush=True)
    except OSError:
        pass  # the log's disk is full, so nobody can be told


def announce(line):
    """Prints the line that a script waits for. The tree continues even if the line cannot be written."""
    try:
        print(f"pitstop: {line}", flush=True)
    except OSError as error:
        say(f"standard output: {error.strerror}; the line was: {line}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # stdout's buffer may still have text


def check_doors(options):
    """Refuses doors for other machines if there are no keys."""
    if (options.tcp_door or options.admin_tcp_door) and not options.door_keys:
        raise Problem(
            f"--tcp-door and --admin-tcp-door need --door-keys DIR; {programs.COMMAND} keygen DIR makes one",
            EXIT_USAGE,
        )


# Flags that work on one machine only, with the reason.
REFUSED_WITH_NODES = (
    (lambda options: options.device == "auto", "--device auto", "each machine would choose separately"),
    (lambda options: options.dp > 1, "--dp", "one replica spans the machines; start another head for another replica"),
    (lambda options: options.restart, "--restart", "each machine would restart by itself; restart all of them by hand"),
    (
        lambda options: options.keep_committed,
        "--keep-committed",
        "ranks of one machine cannot write to the other's disk",
    ),
    (
        lambda options: options.tp % options.nodes != 0,
        "--tp",
        "accepted are multiples of --nodes: each machine has equally many ranks",
    ),
    (lambda options: options.head is None, "no --head", "give HOST:PORT, where node 0 accepts the other machines"),
    (lambda options: options.node_rank >= options.nodes, "--node-rank", "accepted are 0 to --nodes minus 1"),
)


def check_nodes(options):
    """Refuses impossible settings of several machines, and flags for them on one machine."""
    if options.nodes == 1:
        if options.node_rank or options.head or options.node_key:
            raise Problem("--node-rank, --head and --node-key go with --nodes", EXIT_USAGE)
        return
    for is_there, flag, why in REFUSED_WITH_NODES:
        if is_there(options):
            raise Problem(f"--nodes with {flag}: {why}", EXIT_USAGE)
    for flag, place in (("--tcp-door", options.tcp_door), ("--admin-tcp-door", options.admin_tcp_door)):
        if place and not is_head(options):
            raise Problem(f"--node-rank with {flag}: node 0 has the doors of all machines", EXIT_USAGE)
    if is_head(options) and not options.door_keys:
        raise Problem(f"--nodes needs --door-keys DIR on node 0; {programs.COMMAND} keygen DIR makes one", EXIT_USAGE)
    if not is_head(options) and not options.node_key:
        raise Problem(
            f"--node-rank needs --node-key FILE, this machine's; {programs.COMMAND} keygen DIR --node NAME makes one",
            EXIT_USAGE,
        )


def check_ep(options):
    if options.ep and options.tp % options.ep != 0:
        raise Problem(f"--ep {options.ep} with --tp {options.tp}: --tp must be a multiple of --ep", EXIT_USAGE)


def _needs_weights(options):
    return not options.wait_for_initial_weights and options.load_format != "null"


class Served:
    """A running tree and its run directory. Owns: both, until close()."""

    def __init__(self, options, signals):
        named = options.model
        options.model = programs.model_dir(named, say)
        model_check.check(options.model, needs_weights=_needs_weights(options))
        memory_table = memory.check(options, say)
        if memory_table and hasattr(options, "end_with_parent") and sys.stderr.isatty():
            say(f"memory\n{memory_table}")
        is_hubs = hub.is_name(named) and not os.path.isdir(named)
        own_name = named.partition("@")[0] if is_hubs else os.path.basename(options.model)
        options.served_model_names = options.served_model_name or [own_name]
        options.served_model_name = options.served_model_names[0]
        # The keys are passed in the environment, because every user can read command lines.
        for name in ("api_key", "admin_api_key"):
            if getattr(options, name, None) is not None:  # http_proc refuses an empty key
                os.environ[f"PITSTOP_{name.upper()}"] = getattr(options, name)
        self._options = options
        self._signals = signals
        self._tree = None
        self._version = None  # the latest committed version, for a restart
        self._weights = Weights()  # the weights that the tree was started with
        self._restart = Restart()  # the reason of the latest restart
        self._adapters = {}  # adapters that the next tree must load again: name -> the line of its version
        self._files = ModelFiles(options.model) if getattr(options, "restart", False) else None
        self._kept = None
        self._entry = None  # the entry by which commands without --run-dir find the tree
        self.run_dir = RunDir.hold(options.run_dir)
        if getattr(options, "keep_committed", None):
            try:
                self._kept = KeptVersions.hold(options.keep_committed)
            except BaseException:
                self.run_dir.remove()
                raise
            options.keep_committed = str(self._kept.path)

    def start(self):
        """Starts the tree; returns the seconds that it took. Problem or Asked: nothing runs."""
        begin = time.monotonic()
        if self._version is None:
            self._start(Weights())
        else:
            self._bring_back(self._version)
        return time.monotonic() - begin

    def _bring_back(self, version):
        """Makes the next start load exactly that version, or nothing: then the tree waits for an update."""
        why = "no complete copy of it is on disk"
        kept = None
        if self._kept is not None:
            kept = self._kept.find(version.digest)
            why += f", and was not written to {self._kept.path} yet"
        paths = list(filter(None, [kept, version.path]))
        reasons = []
        for path in paths:
            try:
                self._start(Weights(path, version.digest, version.epoch, version.label))
            except LostWeights as lost:
                reasons.append(str(lost))
            else:
                if reasons:
                    say(f"{version} was brought back from {path}, and not from {kept}: {reasons[0]}")
                return
        why = "; ".join(reasons) or why
        say(f"the committed version {version} cannot be brought back: {why}")
        self._start(Weights(epoch=version.epoch, lost=version, why=why))

    def _start(self, weights):
        self._weights = weights
        self.run_dir.clear()
        try:
            restart = self._with_lost_adapters()
            processes = plan(self._options_with_files(), self.run_dir.path, weights, restart)
            descriptors.raise_limit(len(processes))
            self._tree = Tree(processes, self._signals, say, self._options.stall_timeout)
            self._tree.wait_ready(self._options.start_timeout, getattr(self._options, "progress", False))
        except BaseException:
            self.stop()
            raise
        if self.url() and not self._options.port:  # keep the chosen port, so that clients find the tree after a restart
            self._options.port = urllib.parse.urlsplit(self.url()).port
        if not is_head(self._options):
            return  # a machine without doors registers nothing: commands use the head's tree
        self.run_dir.write_tree(
            {
                "launcher": os.getpid(),
                "url": self.url(),
                "doors": self._tree.doors(),
                "model": self._options.model,
                "served_model_name": self._options.served_model_name,
                "tp": self._options.tp,
                "dp": self._options.dp,
                "started": time.time(),
                "of_program": self._of_program(),
                "processes": [
                    {"name": child.name, "kind": child.kind, "pid": child.pid} for child in self._tree.children
                ],
            }
        )
        if self._entry is None:
            self._entry = registry.Entry(self.run_dir.path)

    def _with_lost_adapters(self):
        """Returns the restart with the file that names the lost adapters. The door loads them again. Until then, the
        schedulers refuse requests for them by name."""
        if self._kept is not None and self._restart.why:
            self._adapters = {name: self._with_kept_path(line) for name, line in self._adapters.items()}
            self._kept.remove_adapters({line.split("\t")[5] for line in self._adapters.values()})
        if not self._adapters:
            return self._restart
        path = self.run_dir.path / LOST_ADAPTERS
        try:
            path.write_text("".join(f"{line}\n" for line in self._adapters.values()), "utf-8")
        except OSError as error:
            raise Problem.of("the list of lost adapters", error, EXIT_PLACE) from error
        return dataclasses.replace(self._restart, lost_adapters=str(path))

    def _with_kept_path(self, line):
        """Returns the line of an adapter's version, with the path of its kept copy if --keep-committed has one."""
        name, version, digest, config_digest, pinned, path, label = line.split("\t", 6)
        return "\t".join(
            (name, version, digest, config_digest, pinned, self._kept.find_adapter(version) or path, label)
        )

    def _of_program(self):
        """Returns the pid of the program that started the tree for itself; 0: it was started by hand."""
        if not hasattr(self._options, "end_with_parent"):
            return os.getpid()  # the tree of a generate call
        return os.getppid() if self._options.end_with_parent else 0

    def _options_with_files(self):
        """A restarted tree computes like the one before, even if the model's directory has changed."""
        if self._version is None or self._files is None:
            return self._options
        if not (changed := self._files.what_changed()):
            return self._options
        say(f"{changed} since the start; the tree continues with the files as they were then")
        directory = self.run_dir.path / MODEL
        try:
            self._files.write(directory)
        except OSError as error:
            raise Problem.of("the model's files", error, EXIT_PLACE) from error
        options = copy.copy(self._options)
        options.model = str(directory)
        return options

    def url(self):
        """Returns where HTTP listens; None: it does not. REQUIRES: started."""
        return self._tree.url()

    def doors(self):
        """Returns where the doors listen for other machines. REQUIRES: started."""
        return self._tree.doors()

    def state(self):
        """Describes the started tree in a line."""
        if lost := self._weights.lost:
            return f"has lost its version {lost}: it is up, and waits for a complete update,"
        if self._options.wait_for_initial_weights and not self._weights.path:
            return "is up, and waits for its first weights,"
        return "is ready"

    def watch(self, guest=None):
        """Calls Tree.watch. When it returns, the clients have been told of a dead process."""
        dead = self._tree.watch(guest)
        if dead is None:
            return None
        say(f"{dead.name} died: {dead.how_it_ended()}")
        self._tree.say_farewell(dead)
        self._tree.read_all()  # reads the tokenizer's last lines: the latest commit, and unfinished calls
        self._remember_version()
        self._remember_unfinished(dead)
        self._remember_adapters()
        return dead

    def _remember_unfinished(self, dead):
        """Stores the callers' unfinished work for the next tree. A tokenizer without a report changes nothing."""
        said = self._tree.unfinished()
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        why = f"the tree restarted at {when}, as {dead.name} died ({dead.how_it_ended()})"
        self._restart = Restart(why, self._restart.unfinished if said is None else said)

    def _remember_adapters(self):
        """Stores the adapters that the next tree must load again, including those lost earlier and not loaded since."""
        said = {**self._adapters, **self._tree.adapters()}
        self._adapters = {name: line for name, line in said.items() if line is not None}
        if self._adapters:
            say(f"adapters to load again: {', '.join(sorted(self._adapters))}")

    def _remember_version(self):
        """Stores the version for the next start. Epochs continue to count: the next tree refuses this tree's epochs."""
        said = self._tree.version()
        if said is not None and (said.digest or said.path):
            self._version = said  # otherwise the tree never had weights, or has not got the lost ones back

    def stop(self):
        if self._tree is not None:
            self._tree.stop()
            self._tree = None

    def close(self):
        self.stop()
        if self._entry is not None:
            self._entry.remove()
        self.run_dir.remove()
        if self._kept is not None:
            self._kept.close()


def describe(options, served, seconds):
    if not is_head(options):
        return (
            f"node {options.node_rank} of {options.nodes} is ready after {seconds:.2f} s: "
            f"{len(ranks_here(options))} of {options.tp} workers of {options.served_model_name}, "
            f"head {options.head}, run directory {served.run_dir.path}"
        )
    workers = options.tp * options.dp
    shape = "1 worker" if workers == 1 else f"{workers} workers (dp {options.dp} x tp {options.tp})"
    doors = "".join(f", {name} door {place}" for name, place in served.doors().items())
    http = f"{served.url()} (page and API)" if served.url() else "no HTTP"
    return (
        f"{options.served_model_name} {served.state()} after {seconds:.2f} s: {shape}, "
        f"{http}{doors}, run directory {served.run_dir.path}"
    )


def _pause(seconds, signals):
    """Waits. Raises Asked if a signal arrives first."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if signals.is_asked_to_end:
            raise Asked
        time.sleep(min(left, 0.05))


def _serve_until_end(served, options, signals):
    """Serves until the end, and returns the exit code. Problem: the tree could not start."""
    num_restarts = 0
    while True:
        ready_at = math.inf
        try:
            announce(describe(options, served, served.start()))
            ready_at = time.monotonic()
            code = exit_code_of(served.watch())
            served.stop()
        except Problem as problem:
            if num_restarts == 0:
                raise  # the tree never ran
            say(str(problem))
            code = problem.exit_code
        if code == EXIT_OK or not options.restart:
            return code
        num_restarts = 1 if time.monotonic() - ready_at > STEADY_S else num_restarts + 1
        if num_restarts > RESTARTS_MAX:
            say(f"{RESTARTS_MAX} restarts in a row did not help; giving up")
            return code
        wait_s = min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** (num_restarts - 1))
        say(f"restart {num_restarts} of at most {RESTARTS_MAX} in {wait_s:g} s")
        _pause(wait_s, signals)


def end_with_parent():
    """Makes the kernel send SIGTERM when the thread that started this program ends."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent or parent == 1:
        raise Problem("--end-with-parent: the program that started this command has ended", EXIT_PLACE)


def serve(options):
    """Runs until a process dies or a signal comes; returns the exit code."""
    if options.checkpoint is not None:
        if options.model != "stories" and options.model != options.checkpoint:
            raise Problem(f"the model is '{options.checkpoint}' or --model {options.model}: give one", EXIT_USAGE)
        options.model = options.checkpoint
    check_doors(options)
    check_nodes(options)
    check_ep(options)
    if options.end_with_parent:
        end_with_parent()
    signals = Signals()
    served = Served(options, signals)
    try:
        return _serve_until_end(served, options, signals)
    except Asked:
        if sys.stderr.isatty():
            say("stopped, as asked")
        return EXIT_OK
    finally:
        served.close()
