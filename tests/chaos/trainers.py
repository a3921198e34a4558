"""Several trainers at once: their next calls, their deaths, and whether the answers to them are
true.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy

from . import adapters, trainer, weights

JOB_S = 200.0  # longer than any job: each call has a deadline
POLICIES = ("keep", "keep", "keep", "recompute", "drain", "abort")
# Errors that a call may get while others update, processes die and memory is released.
CODES_OK = {
    "unavailable",
    "aborted",
    "failed_precondition",
    "resource_exhausted",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "http_400",
    "http_503",
    "http_504",  # deadline_exceeded by HTTP: a commit that is ordered may take effect after a death
    "http_409",
}
COMPLETE = ("disk", "http_disk", "stage_commit", "push", "push_cli", "session", "tensors_call", "broadcast")
PARTIAL = ("push", "session", "tensors_call", "broadcast", "sparse")
OTHERS = (
    "stage_drop",
    "rollback",
    "relabel",
    "flush",
    "abort_some",
    "pause_update",
    "pause_update",
    "pause_update",
    "pause_continue",
    "memory",
    "diverge",
    "diverge",
    "bad",
    "overwritten",
)
OVERWRITTEN = "a directory that is overwritten afterwards"
DEATH_SHARE = 0.15
ADAPTERS_SHARE = 0.25
ADAPTERS_BY = ("disk", "http", "push", "call", "session")


class TrainerProcesses:
    """Owns: the process that forks a process per job."""

    def __init__(self, place, environment):
        self._place = pathlib.Path(place)
        self._place.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Condition()
        self._pids, self._ended = {}, {}
        self._number = 0
        self.all_pids = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.trainer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self._place / "trainers.log", "ab"),
            text=True,
            env={**os.environ, **environment},
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            said = json.loads(line)
            with self._lock:
                if "status" in said:
                    self._ended[said["id"]] = said["status"]
                else:
                    self._pids[said["id"]] = said["pid"]
                    self.all_pids.add(said["pid"])
                self._lock.notify_all()

    def run(self, spec, kill_after_s=None):
        """The job's result; {"ok": False, "code": "killed"} if it died by a signal, "hangs" if it had
        to be killed."""
        with self._lock:
            self._number += 1
            number = self._number
            reply = self._place / f"reply-{number}"
            self._process.stdin.write(json.dumps({**spec, "id": number, "reply": str(reply)}) + "\n")
            self._process.stdin.flush()
        self._wait_for(number, kill_after_s or JOB_S)
        is_late = False
        if number not in self._ended:
            is_late = kill_after_s is None
            self._kill(number)
            self._wait_for(number, 30)
        try:
            if self._ended.get(number) == 0 or spec["kind"] == "push_cli":
                text = reply.read_text()
                if text:
                    answer = json.loads(text)
                    return {"ok": True, **answer["reply"]} if "reply" in answer else answer
        except (OSError, ValueError):
            pass
        finally:
            reply.unlink(missing_ok=True)
        if is_late:
            return {"ok": False, "code": "hangs", "message": f"not done after {JOB_S:.0f} s"}
        status = self._ended.get(number)
        if status is not None and status > 0:
            return {"ok": False, "code": "aborted", "message": f"exit {status}"}
        return {"ok": False, "code": "killed", "message": ""}

    def _wait_for(self, number, timeout_s):
        with self._lock:
            self._lock.wait_for(lambda: number in self._ended, timeout_s)

    def _kill(self, number):
        pid = self._pids.get(number)
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class TrainerThread(threading.Thread):
    """Trainers one after another, each of a random kind."""

    def __init__(self, number, rng, world):
        super().__init__(name=f"trainer-{number}", daemon=True)
        self.rng, self.world = rng, world
        self._number = 0
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.is_set():
            try:
                self.step()
            except Exception as error:
                self.world.report.problem(f"{self.name}: {type(error).__name__}: {error}", trace=True)
                return
            self.stopped.wait(self.rng.uniform(0.2, 3.0))

    def step(self):
        world, rng = self.world, self.rng
        if world.tree.url() is None:
            self.stopped.wait(0.3)
            return
        draw = rng.random()
        if draw < ADAPTERS_SHARE:
            spec, expected, name = self._adapter()
        elif draw < 0.45:
            spec, expected, name = self._complete(rng.choice(COMPLETE))
        elif draw < 0.6:
            spec, expected, name = self._collect()
        elif draw < 0.75:
            spec, expected, name = self._partial(rng.choice(PARTIAL))
        else:
            spec, expected, name = self._other(rng.choice(OTHERS))
        kill_after_s = None
        if rng.random() < DEATH_SHARE:
            if rng.random() < 0.5:
                spec["die_at"] = rng.choice(trainer.POINTS)
            else:
                kill_after_s = rng.uniform(0.01, 1.0)
        world.report.act(
            f"{self.name}: {name} {spec.get('kv_policy', '')} die_at={spec.get('die_at')} kill_after={kill_after_s}"
        )
        if spec["kind"] == "memory" and "weights" in spec["tags"] and not spec["keep_weights"]:
            world.released_at = time.monotonic()
        result = world.trainers.run(spec, kill_after_s)
        if result.get("code") == "killed":
            world.report.count("faults", f"trainer killed in {name}")
        judge = self._judge_adapter if "adapter" in spec else self._judge
        judge(name, spec, expected, result)

    def _base(self, kind, directory):
        world, rng = self.world, self.rng
        self._number += 1
        return {
            "kind": kind,
            "run_dir": str(world.tree.run_dir),
            "url": world.tree.url(),
            "dir": str(directory),
            "build": world.build,
            "label": f"{self.name} step {self._number}",
            "calls_log": str(world.book.calls.path),
            "kv_policy": rng.choice(POLICIES),
        }

    def _adapter(self):
        """Loads, replaces, rolls back or unloads an adapter; some loads must be refused."""
        world, rng = self.world, self.rng
        draw = rng.random()
        files, digest = rng.choice(world.adapters.contents)
        kind = "adapter" if draw < 0.8 else "rollback_adapter" if draw < 0.88 else "unload_adapter"
        spec = self._base(kind, files)
        spec.update(kv_policy="keep", adapter=rng.choice(adapters.NAMES))
        if kind != "adapter":
            spec["adapter_policy"] = rng.choice(("finish", "keep", "recompute"))
            return spec, None, "adapter unloaded" if kind == "unload_adapter" else "adapter rolled back"
        spec.update(by=rng.choice(ADAPTERS_BY), adapters_dir=str(world.adapters.directory), adapter_digest=digest)
        if draw < 0.72:
            return spec, digest, f"adapter by {spec['by']}"
        described, tensors = adapters.load(world.adapters.directory, digest)
        name = rng.choice(sorted(tensors))
        what = rng.choice(("not finite", "without a tensor"))
        if what == "not finite":
            tensors[name].flat[rng.randrange(tensors[name].size)] = numpy.nan
        else:
            del tensors[name]
        directory = world.scratch(f"bad-{self.name}")
        adapters.write(directory, described, tensors)
        spec.update(by=rng.choice(("disk", "http")), dir=str(directory))
        return spec, "refused", f"bad adapter {what}"

    def _judge_adapter(self, name, spec, expected, result):
        report, book = self.world.report, self.world.adapters
        if not result.get("ok"):
            code = result.get("code") or "refused"
            if code in ("hangs", "trainer") or code not in CODES_OK | {"killed", "refused"} and expected != "refused":
                report.problem(f"{name} ended with {code}: {result.get('message')}")
            report.count("refused", f"{name}: {code}")
            return
        report.count("updates", name)
        if expected == "refused":
            report.problem(f"{name} was taken: {result}")
        elif spec["kind"] == "unload_adapter":
            book.unloaded(spec["adapter"], result["epoch"])
        elif expected is not None and result["digest"] != expected:
            report.problem(f"{name}: the answer says digest {result['digest']}, NumPy of what was sent {expected}")
        else:
            wrong = book.see(spec["adapter"], result["epoch"], result["digest"])
            if wrong:
                report.problem(f"{name}: {wrong}")
            book.loaded(spec["adapter"], result["epoch"])

    def _complete(self, kind):
        """(spec, the digest that must result, its name)."""
        world, rng = self.world, self.rng
        index = rng.randrange(len(world.checkpoints))
        spec = self._base(kind, world.checkpoints[index][0])
        if kind in ("disk", "http_disk") and rng.random() < 0.15:
            spec["mode"] = "direct"
        if kind == "push_cli":
            spec["adopt"] = rng.random() < 0.5
        return spec, world.checkpoints[index][1], kind + (" direct" if "mode" in spec else "")

    def _partial(self, kind):
        """Some tensors of another checkpoint, on top of the version that serves. A sparse update requires the base that
        it names."""
        world, rng = self.world, self.rng
        index, other = rng.sample(range(len(world.checkpoints)), 2)
        directory, _, tensors = world.checkpoints[index]
        names = rng.sample(sorted(tensors), rng.randint(1, 5))
        spec = self._base(kind, directory)
        spec.update(names=names, partial=True)
        if kind == "sparse":  # refused unless the other checkpoint serves
            spec.update(base_dir=str(world.checkpoints[other][0]), base_digest=world.checkpoints[other][1])
            whole = {**world.checkpoints[other][2], **{name: tensors[name] for name in names}}
            return spec, world.book.add(whole), "sparse"
        changes = {name: tensors[name] for name in names}
        if kind in ("tensors_call", "broadcast"):  # may be collected together with others' calls
            world.book.calls.register(spec["label"], [world.book.keys_of(changes)])
        else:
            world.book.add_partial(changes)
        return spec, None, f"{kind} partial"

    def _collect(self):
        """Calls that name no session, under a pause or in a session begun over HTTP."""
        world, rng = self.world, self.rng
        directory, _, tensors = rng.choice(world.checkpoints)
        names = rng.sample(sorted(tensors), rng.randint(2, 8))
        size = rng.choice((1, 2))
        parts = [names[at : at + size] for at in range(0, len(names), size)]
        spec = self._base("collect", directory)
        spec.update(
            parts=parts,
            by=rng.choice(("bus", "http")),
            unnamed=rng.random() < 0.5,
            begins=rng.random() < 0.4,
            take_over=rng.random() < 0.5,
            pause_mode=rng.choice(("in_place", "retract")),
            max_pause_s=rng.choice((0.0, 0.0, 0.3, 2.0)),
            rest_s=rng.choice((0.0, 0.05, 0.4)),
            width=rng.choice((1, 1, 2, 4)),
            times=rng.choice((1, 1, 1, 2)),
            is_stubborn=rng.random() < 0.3,
            spoils=rng.random() < 0.2,
        )
        calls = [world.book.keys_of({name: tensors[name] for name in part}) for part in parts]
        world.book.calls.register(spec["label"], calls)
        how = "session over HTTP" if spec["begins"] and spec["unnamed"] else f"by {spec['by']}"
        return spec, None, f"collect, {how}"

    def _other(self, kind):
        world, rng = self.world, self.rng
        directory, digest, _ = rng.choice(world.checkpoints)
        spec = self._base(kind, directory)
        name = kind
        if kind in ("pause_update", "pause_continue"):
            spec["pause_mode"] = rng.choice(("abort", "in_place", "retract", "wait"))
            spec["hold_s"] = rng.choice((0.0, 0.2, 1.0))
            spec["max_pause_s"] = rng.choice((0.0, 2.0, 5.0))
            name = f"{kind} {spec['pause_mode']}"
        elif kind == "memory":
            spec["keep_weights"] = rng.random() < 0.5
            spec["tags"] = rng.choice((["weights"], ["kv_cache"], ["weights", "kv_cache"]))
            name = f"memory {'+'.join(spec['tags'])}{' kept' if spec['keep_weights'] else ''}"
        elif kind == "abort_some":
            spec["rids"] = world.open_rids(rng)
        elif kind == "diverge":
            spec.update(diverged_dir=str(world.diverged[0]), hold_s=rng.choice((0.3, 1.0, 2.0)))
        elif kind == "bad":
            return self._bad(spec)
        elif kind == "overwritten":
            return self._overwritten(spec)
        is_update = kind in ("pause_update", "diverge") or (
            kind == "memory" and "weights" in spec["tags"] and not spec["keep_weights"]
        )
        return spec, digest if is_update else None, name

    def _bad(self, spec):
        """Updates that must be refused, by name, and leave the old version serving."""
        world, rng = self.world, self.rng
        what = rng.choice(("truncated", "digest", "epoch"))
        directory = world.scratch(f"bad-{self.name}")
        source = pathlib.Path(spec["dir"])
        if what == "digest":
            spec.update(kind="disk", digest="0123456789abcdef" * 2)
        elif what == "epoch":
            spec.update(kind="disk", epoch=1)
        else:  # a checkpoint cut off, as on a trainer's full disk
            weights.write_checkpoint(directory, weights.read_checkpoint(source), source)
            whole = (directory / "model.safetensors").read_bytes()
            (directory / "model.safetensors").write_bytes(whole[: rng.randrange(len(whole))])
            spec.update(kind="disk", dir=str(directory))
        return spec, "refused", f"bad {what}"

    def _overwritten(self, spec):
        """A directory whose weights change after the commit: a restart must not serve the changed
        ones as the committed version.
        """
        directory = self.world.scratch(f"latest-{self.name}")
        _, digest, tensors = self.rng.choice(self.world.checkpoints)
        weights.write_checkpoint(directory, tensors, spec["dir"])
        spec.update(kind="disk", dir=str(directory))
        return spec, digest, OVERWRITTEN

    def _judge(self, name, spec, expected, result):
        report, world = self.world.report, self.world
        if name == OVERWRITTEN:
            weights.write_checkpoint(spec["dir"], self.rng.choice(world.checkpoints)[2], spec["dir"])
        if not result.get("ok"):
            code = result.get("code") or "refused"
            if code in ("hangs", "trainer"):
                report.problem(f"{name} {code}: {result.get('message')}")
            elif self._lacks_weights(spec, result):
                code = "a part of a model, where a death has left none"
            elif self._contradicts(spec, result):
                code = "other bytes than another trainer's, in one collection"
            elif code not in CODES_OK | {"killed", "refused"} and not name.startswith("bad"):
                report.problem(f"{name} ended with {code}: {result.get('message')}")
            report.count("refused", f"{name}: {code}")
            return
        report.count("updates", name)
        if result.get("before"):
            wrong = world.epochs.see(*result["before"])
            if wrong:
                report.problem(f"{name}: {wrong}")
        digest = result.get("digest")
        if expected == "refused":
            report.problem(f"{name} was taken: {result}")
        elif expected is not None and digest != expected:
            report.problem(f"{name}: the answer says digest {digest}, NumPy of what was sent {expected}")
        elif digest and not world.book.knows(digest):
            report.problem(f"{name}: digest {digest} is of no version that anybody sent")
        if digest and result.get("epoch"):
            wrong = world.epochs.see(result["epoch"], digest)
            if wrong:
                report.problem(f"{name}: {wrong}")
            world.confirm(result["epoch"])
        if spec["kind"] == "collect" and digest and world.book.knows(digest):
            wrong = world.book.calls.problem_of(spec["label"], world.book.keys_in(digest))
            if wrong:
                report.problem(f"{name}: {wrong}")

    @staticmethod
    def _contradicts(spec, result):
        """By design: calls without a session of several trainers become one update, which has each
        tensor once.
        """
        return (
            spec["kind"] in ("collect", "tensors_call", "broadcast")
            and (spec["kind"] == "collect" or spec.get("partial", False))
            and result.get("code") == "invalid_argument"
            and "arrived before in this update, with other bytes" in (result.get("message") or "")
        )

    def _lacks_weights(self, spec, result):
        """By design: a restart may lose the version, and a session in a tree without weights must be whole."""
        return (
            spec.get("partial", False)
            and spec["kind"] in ("push", "push_cli", "session")
            and result.get("code") == "invalid_argument"
            and "is missing" in (result.get("message") or "")
            and self.world.has_lost_weights()
        )
