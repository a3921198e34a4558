"""One tree: its shape, the load and the faults on it, and what must hold at the end."""

import dataclasses
import json
import os
import pathlib
import random
import signal
import threading
import time

import numpy

import pitstop

from . import adapters, asked, diverged, drafts, faults, load, scoring, trainers, tree, warden, weights
from .oracle import Rounding, tolerances
from .replay import Record
from .verifier import Verifiers
from .versions import EpochBook, ScoreBook, VersionBook

BACKLOG_MAX = 60  # records that wait for the oracle; above this, clients send nothing new
QUIET_S = 200.0  # limit for the open requests' ends, once nothing new begins
MORE_S = 240.0  # limit of the extra time for events that an episode has not seen yet
VERIFY_S = 300.0
NUM_CHECKPOINTS = 5
RELEASED_S = 60.0  # a trainer may leave the tree without weights for this long: then the warden brings new ones
RANDOM = {
    "random": weights.tiny_config,
    "random-experts": weights.tiny_experts_config,
    "random-hybrid": weights.tiny_hybrid_config,
}
PAIRS = {
    "stories": ("stories", "bard"),
    "stories-moe": ("stories-moe", "bard-moe"),
    "stories-hybrid": ("stories-hybrid", "bard-hybrid"),
}
MODELS = (
    "random",
    "random",
    "stories",
    "random-experts",
    "random-experts",
    "stories-moe",
    "random-hybrid",
    "stories-hybrid",
)
OF_EXPERTS = ("random-experts", "stories-moe")
ROUTED = {"fp32": 0.6, "bf16": 1.0}  # share of requests that ask for routes; without routes many stay undecided in bf16
QUIET_PROMPTS = 4  # records per version that are scored again at the end


@dataclasses.dataclass(frozen=True)
class Shape:
    """The settings that a tree is started with."""

    model: str  # a kind of RANDOM, or a bundled model's name
    tp: int
    dp: int
    compute: str
    page_size: int
    chunk: int
    pool: int
    running: int
    divides_experts: bool  # the ranks divide the experts, if there are any

    @classmethod
    def choose(cls, rng):
        return cls(
            model=rng.choice(MODELS),
            tp=rng.choice((1, 2)),
            dp=rng.choice((1, 1, 2)),
            compute=rng.choice(("fp32", "fp32", "bf16")),
            page_size=rng.choice((8, 16)),
            chunk=rng.choice((16, 16, 64, 512)),
            pool=rng.choice((512, 1024, 4096)),
            running=rng.choice((4, 16)),
            divides_experts=rng.random() < 0.5,
        )

    @property
    def ep(self):
        return self.tp if self.divides_experts and self.model in OF_EXPERTS else 1

    def flags(self, model_dir):
        return [
            "--restart",
            "--model",
            model_dir,
            "--tp",
            self.tp,
            *(("--ep", self.ep) if self.ep > 1 else ()),
            "--dp",
            self.dp,
            "--compute",
            self.compute,
            "--page-size",
            self.page_size,
            "--chunked-prefill-size",
            self.chunk,
            "--max-total-tokens",
            self.pool,
            "--max-running-requests",
            self.running,
            "--stall-timeout",
            6,
            "--step-timeout",
            60,
            "--threads",
            1,
        ]


class World:
    """The state that all parts of an episode share."""

    def __init__(self, number, seed, report, place, options):
        self.number, self.report, self.place, self.options = number, report, place, options
        self.rng = random.Random(f"{seed}/{number}")
        self.shape = Shape.choose(self.rng)
        if options.model:
            self.shape = dataclasses.replace(self.shape, model=options.model)
        self.speculates = options.speculate is not None
        self.directory = place.root / f"tree-{number}"
        self.directory.mkdir()
        self.build = os.environ.get("PITSTOP_BUILD", str(weights.ROOT / "build/cpu"))
        self.book = VersionBook(self.directory / "versions")
        self.epochs = EpochBook(self.book.calls.may_name_several)
        self.scores = ScoreBook()
        self.released_at = -RELEASED_S  # time at which a trainer last released weights without keeping them
        self.checkpoints = []  # (directory, digest, tensors)
        self._lock = threading.Lock()
        self._confirmed = 0
        self._scratch = {}
        generator = numpy.random.default_rng([seed, number])
        self._make_checkpoints(generator)
        tensors = self.checkpoints[0][2]
        self.adapters = adapters.AdapterBook(self.directory / "adapters", self.config, tensors, generator)
        self.overflows = diverged.Overflows(self)
        self.tree = self.trainers = self.verifiers = self.requests = self.warden = None

    def _make_checkpoints(self, generator):
        if self.shape.model in RANDOM:
            self.config = RANDOM[self.shape.model]()
            sets = [weights.random_tensors(self.config, generator) for _ in range(NUM_CHECKPOINTS)]
        else:
            self.config = json.loads((weights.MODELS / self.shape.model / "config.json").read_text())
            stories, bard = (weights.read_checkpoint(weights.MODELS / name) for name in PAIRS[self.shape.model])
            mixed = [
                {name: bits if generator.random() < 0.7 else bard[name] for name, bits in stories.items()}
                for _ in range(2)
            ]
            sets = [stories, bard, *mixed]
        for index, tensors in enumerate(sets):
            directory = self.directory / f"checkpoint-{index}"
            directory.mkdir()
            (directory / "config.json").write_text(json.dumps(self.config))
            weights.write_checkpoint(directory, tensors, weights.MODELS / "stories")
            self.checkpoints.append((directory, self.book.add(tensors), tensors))
            self.book.knows(self.checkpoints[-1][1])

    def scratch(self, name):
        """A new directory for each update of the trainer `name`: a tree may still be reading the previous one."""
        number = self._scratch[name] = self._scratch.get(name, 0) + 1
        directory = self.directory / f"{name}-{number}"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(self.config))
        return directory

    def has_lost_weights(self):
        """Whether the tree may be without weights: a restart lost a version that had no directory
        and was not kept, or a trainer has just released them. A trainer's answer can come before
        the warden's next look.
        """
        if time.monotonic() < self.released_at + RELEASED_S or self.tree.has_lost_version():
            return True
        return self.warden is not None and self.warden.has_lost_weights

    def is_serving(self):
        return self.warden is not None and self.warden.is_serving

    def confirm(self, epoch):
        """A trainer's answer said that this epoch is in effect."""
        with self._lock:
            self._confirmed = max(self._confirmed, epoch)

    def newest_confirmed(self):
        """The newest epoch that an answer has named: no later status may show an older one, not even after a restart."""
        with self._lock:
            return self._confirmed

    def open_rids(self, rng):
        rids = self.requests.open_rids()
        return rng.sample(rids, min(len(rids), rng.randint(0, 3)))

    def allowed_growth_kib(self, name):
        """The memory that a process may gain: a trainer can make the tree hold two copies of the weights, and the
        memory of an adopted push counts."""
        size = sum(bits.nbytes for bits in self.checkpoints[0][2].values()) >> 10
        return warden.GROWTH_MAX_KIB + 4 * size


class Episode:
    """Runs one tree for a limited time; run() returns once everything that the episode started has ended."""

    def __init__(self, number, seed, report, place, options):
        self.world = World(number, seed, report, place, options)
        self.report, self.place, self.options = report, place, options
        self._begin = time.monotonic()
        self._found_at_start = report.num_problems
        self._verified_at_start = report.total("oracle", "verified")
        self._faults_at_start = report.total("faults")
        self._updates_at_start = report.total("updates")

    def run(self, seconds, tick):
        world = self.world
        self.report.act(f"tree {world.number}: {world.shape}")
        self.report.count(
            "trees",
            f"{world.shape.model} {world.shape.compute} tp {world.shape.tp} ep {world.shape.ep} dp {world.shape.dp}",
        )
        rounding = Rounding(world.shape.compute)
        checkpoints = [each[2] for each in world.checkpoints[:3]]
        allowed = tolerances(world.config, checkpoints, rounding, adapters=world.adapters.whole)
        self._tolerance = allowed[0]
        world.verifiers = Verifiers(
            self.options.verifiers,
            world.config,
            rounding,
            allowed,
            world.shape.page_size,
            [world.book.directory, world.adapters.directory],
            self._judge,
        )
        self._lock = threading.Lock()
        world.epochs.see(1, world.checkpoints[0][1])  # a tree begins with its model's own weights
        self._start_tree()
        try:
            if world.tree.wait_life(1):
                self._chaos(seconds, tick)
            else:
                self.report.problem(f"the tree did not start: {world.tree.log()[-2000:]}")
        finally:
            self._end()

    def _start_tree(self):
        world = self.world
        run_dir = self.place.run_root / str(world.number)
        log = self.report.out_dir / f"tree-{world.number}.log"
        self.place.step_clock(0)
        self._shared = set(pathlib.Path("/dev/shm").iterdir())  # the verifiers' queues
        flags = world.shape.flags(world.checkpoints[0][0])
        if world.rng.random() < 0.5:
            flags += ["--keep-committed", world.directory / "kept"]
        if world.speculates:
            flags += ["--speculate", self.options.speculate]
        world.tree = tree.ChaosTree(run_dir, flags, log, self.place.environment)
        paths = os.pathsep.join([str(weights.ROOT / "tests"), str(weights.ROOT / "client/python")])
        world.trainers = trainers.TrainerProcesses(world.directory / "jobs", {"PYTHONPATH": paths})
        world.requests = asked.Requests(self.report, self._submit, world.overflows.judge)

    def _submit(self, record):
        for span in record.spans:
            self.world.book.knows(span[1])  # compute the results of partial updates now
        for label, digest in record.labels:
            wrong = self.world.epochs.see_label(label, digest)
            if wrong:
                self.report.problem(f"{record.rid}: {wrong}")
        if record.adapter or record.ending in load.ENDINGS_OK:
            wrong = self.world.adapters.problem_of(record)
            if wrong:
                self.report.problem(f"{record.rid}: {wrong}\n  {record}")
        elif record.adapter_name:
            self.report.count("oracle", "requests with an error that tells no adapter")
            return
        if record.scores:
            self._compare_scores(record)
        if record.adapter:
            self.report.count("adapters", f"{record.client or 'quiet'}: {record.ending}")
        self.world.verifiers.put(record, self.world.epochs.all())

    def _compare_scores(self, record):
        self.report.count("scorings", record.client or "quiet")
        if record.retractions and record.client.startswith(("bus", "sglang")):  # the clients that report retractions
            self.report.count("scorings", f"{record.client}: begun anew on the way")
        wrong = self.world.scores.see(record)
        if wrong:
            self.report.problem(f"scores of {record.rid}: {wrong}\n  {record}")

    def _judge(self, verdict, record, cpu_s):
        report, name = self.report, self.world.shape.compute
        with self._lock:
            report.oracle_cpu_s += cpu_s
            error, _ = report.largest_error.get(name, (0.0, 0.0))
            if verdict.largest_error >= error:
                report.largest_error[name] = (verdict.largest_error, self._tolerance)
        report.count("oracle", "verified", verdict.num_verified)
        if verdict.num_scored:
            report.count("scorings", "prompt tokens verified", verdict.num_scored)
        if verdict.num_rows:
            report.count("oracle", "rows of routes verified", verdict.num_rows)
        if verdict.num_hypotheses > 1:
            report.count("oracle", "requests with more than one possible history")
        if verdict.is_undecided:
            report.count("oracle", "undecided requests")
        if verdict.problem:
            told = {each: digest for each, digest in self.world.epochs.all().items() if _is_of(each, record)}
            report.problem(f"tokens of {verdict.rid}: {verdict.problem}\n  {record}\n  epochs {told}")

    def _chaos(self, seconds, tick):
        world, rng = self.world, self.world.rng
        world.warden = warden.Warden(world)
        has_experts = weights.num_experts(world.config) > 0
        share = ROUTED[world.shape.compute] if has_experts else 0.0
        speculated = drafts.Drafts(self.report, world.config["vocab_size"]) if world.speculates else None
        prompts = asked.Prompts(rng, world.config, world.shape.pool - 100, share, speculated, world.adapters)
        scorers = scoring.SCORERS_OF_EXPERTS if has_experts else scoring.SCORERS
        clients = [
            kind(
                number,
                random.Random(rng.random()),
                world.tree,
                world.requests,
                prompts,
                self.report,
                lambda: world.verifiers.num_waiting() < BACKLOG_MAX,
            )
            for number, kind in enumerate(load.KINDS + scorers)
        ]
        doers = [
            trainers.TrainerThread(number, random.Random(rng.random()), world) for number in range(rng.choice((2, 3)))
        ]
        doers.append(faults.Faults(random.Random(rng.random()), world, self.place))
        for thread in [world.warden, *clients, *doers]:
            thread.start()
        deadline = time.monotonic() + seconds
        while not self._is_over(deadline):
            time.sleep(0.2)
            tick()
            for rid, client in world.requests.hanging().items():
                self.report.problem(f"{rid} of {client} has no end after {asked.REQUEST_S:.0f} s")
        self._wind_down(clients, doers, tick)

    def _is_over(self, deadline):
        if self.world.tree.has_ended() or self.report.num_problems > self._found_at_start:
            return True
        now = time.monotonic()
        if now < deadline:
            return False
        has_seen_all = (
            self.report.total("oracle", "verified") > self._verified_at_start
            and self.report.total("faults") > self._faults_at_start
            and self.report.total("updates") > self._updates_at_start
        )
        return has_seen_all or now > deadline + MORE_S

    def _wind_down(self, clients, doers, tick):
        """Nothing new begins; everything open ends within a bound."""
        world = self.world
        for thread in doers:
            thread.stopped.set()
        self._join(doers, trainers.JOB_S + 60, "trainers and faults", tick)
        world.tree.undo_faults()
        self.place.step_clock(0)
        for thread in clients:
            thread.stopped.set()
        self._join(clients, QUIET_S, "clients", tick)
        if world.requests.num_open():
            self.report.problem(f"{world.requests.num_open()} requests never ended: {world.requests.open_rids()[:5]}")
        if not world.tree.has_ended():
            self._check_still_serves(tick)
        world.warden.stopped.set()
        self._join([world.warden], 60, "warden", tick)

    def _join(self, threads, timeout_s, what, tick):
        deadline = time.monotonic() + timeout_s
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() > deadline:
                names = [thread.name for thread in threads if thread.is_alive()]
                self.report.problem(f"{what} did not end in {timeout_s:.0f} s: {names}")
                return
            time.sleep(0.1)
            tick()

    def _check_still_serves(self, tick):
        """At the end, the resident weights are a version that was sent, and the tree generates."""
        world, deadline = self.world, time.monotonic() + QUIET_S
        while time.monotonic() < deadline and not world.tree.has_ended():
            tick()
            try:
                with pitstop.Client(str(world.tree.run_dir), timeout=10) as client:
                    digest = client.weight_digests(timeout=30)["digest"]
                    if not world.book.knows(digest):
                        self.report.problem(f"what is resident at the end is {digest}, which nobody sent")
                    self._drop_leftover(client)
                    if world.overflows.is_diverged(digest):  # a trainer died before it restored the weights
                        client.update_weights(str(world.checkpoints[0][0]), label="healthy", timeout=60)
                    client.generate([1, 2, 3], max_new_tokens=4, timeout=30).result()
                    self._score_quietly(client)
                    return
            except pitstop.PitstopError as error:
                last = error
                time.sleep(0.5)
        if not world.tree.has_ended():
            self.report.problem(f"the tree does not serve at the end: {last}")

    def _drop_leftover(self, client):
        """A trainer that died may have left a stage, which is held for an hour."""
        try:
            client.drop_stage(timeout=30)
        except pitstop.PitstopError as error:
            if error.code != "failed_precondition":
                raise

    def _score_quietly(self, client):
        """Checks that prompts scored again without disturbance get the same bits as amid updates."""
        for number, (directory, digest, _) in enumerate(self.world.checkpoints):
            prompts = self.world.scores.prompts_of(digest, QUIET_PROMPTS)
            if not prompts:
                continue
            reply = client.update_weights(str(directory), label=f"quiet {number}", timeout=60)
            client.flush_cache(timeout=20)
            for prompt in prompts:
                chunk = client.generate(
                    prompt, max_new_tokens=0, logprobs={"enabled": True, "prompt_start": 0}, timeout=60
                ).result()
                spans = [(s.epoch, s.digest, s.tokens, s.kv_min_epoch, s.kv_max_epoch) for s in chunk.spans]
                quiet = Record(f"quiet-{number}", prompt, [], spans, scores=chunk.prompt.logprobs)
                if [span[0] for span in spans] != [reply["epoch"]]:
                    self.report.problem(f"a quiet scoring under epoch {reply['epoch']} names {spans}")
                self._submit(quiet)

    def _end(self):
        world = self.world
        gave_up = world.tree.has_ended()
        deaths = world.tree.num_deaths()
        is_killed = not gave_up and world.rng.random() < 0.2
        if is_killed:
            world.tree.launcher.send_signal(signal.SIGKILL)
        code = world.tree.stop()
        self._check_exit(code, gave_up, is_killed, deaths)
        pids = set(world.trainers.all_pids)
        world.trainers.close()
        for what in world.tree.leftovers():
            if not (is_killed and what.startswith(("file", "directory"))):
                self.report.problem(f"left behind: {what}")
        for name in tree.sockets_left(pids):
            self.report.problem(f"left behind: socket {name}")
        if self.place.has_mounts:
            for path in set(pathlib.Path("/dev/shm").iterdir()) - self._shared:
                self.report.problem(f"left behind: {path}")
        world.overflows.judge_late()
        left = world.verifiers.finish(VERIFY_S)
        if left:
            self.report.count("oracle", "records that were not verified in time", left)
        if world.verifiers.num_skipped:
            self.report.count("oracle", "records skipped", world.verifiers.num_skipped)

    def _check_exit(self, code, gave_up, is_killed, deaths):
        """A tree gives up (exit code not 0) after many deaths, or if its run directory was full;
        otherwise it ends with 0.
        """
        if deaths:
            self.report.count("deaths", "of trees that gave up" if gave_up else "of trees that went on", deaths)
        if gave_up:
            self.report.act(f"the launcher gave up with {code} after {deaths} deaths")
            self.report.count("trees", f"gave up with exit code {code}")
            if code not in tree.EXIT_DIED | {tree.EXIT_START, tree.EXIT_PLACE} or "Traceback" in self.world.tree.log():
                self.report.problem(f"the launcher ended with {code}: {self.world.tree.log()[-1500:]}")
            elif code in tree.EXIT_DIED and deaths <= 5:
                self.report.problem(f"the launcher gave up with {code} after {deaths} deaths")
        elif is_killed:
            self.report.count("faults", "kill launcher")
        elif code != 0:
            self.report.problem(f"the launcher ended with {code} when it was asked to end")


def _is_of(epoch, record):
    """Whether the record's tokens may have attended to KV of this epoch."""
    return any(kv_min <= epoch <= kv_max for _, _, _, kv_min, kv_max in record.spans)
