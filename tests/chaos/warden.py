"""Watches the tree: checks that its status is true, and mends what dead trainers left.

After a restart the tree has a committed version, no older than the last one that a trainer was told of; or it waits for
weights and generates nothing. It never has other weights under the same epoch.
"""

import threading
import time

import pitstop

from .collected import write

LOOK_S = 0.4
STARTS_S = 0.3  # a new life accepts no call in this time before its ready line
STATUS_S = 20.0
SILENT_MAX_S = 90.0  # no answer for this long is a finding, whatever fault is active
LEFT_S = 5.0  # a pause, or released memory, that lasts this long is ended here
WARM_S = 25.0  # from a start until the memory in use becomes the base for measuring growth
GROWTH_MAX_KIB = 64 << 10
DESCRIPTORS_MAX = 64  # descriptors above the base; a client that connects and leaves uses some for a moment


class Warden(threading.Thread):
    def __init__(self, world):
        super().__init__(name="warden", daemon=True)
        self.world = world
        self.stopped = threading.Event()
        self._client = None
        self._life = 0
        self._life_begin = time.monotonic()
        self._base = {}
        self._last_answer = time.monotonic()
        self._odd_since = None
        self.is_serving = False
        self.has_lost_weights = False  # a restart lost the weights

    def run(self):
        while not self.stopped.wait(LOOK_S):
            try:
                self.look()
            except Exception as error:
                self.world.report.problem(f"warden: {type(error).__name__}: {error}", trace=True)
                return
        self.close()

    def close(self):
        if self._client is not None:
            self._client.close()
            self._client = None

    def look(self):
        world = self.world
        if world.tree.has_ended():
            self.is_serving = False
            self.stopped.set()
            return
        if world.tree.num_lives != self._life:
            self._begin_life(world.tree.num_lives)
        confirmed = world.newest_confirmed()
        status = self._status()
        if status is None:
            self.is_serving = False
            if not world.tree.pids():
                self._last_answer = time.monotonic()  # no tree can answer now; a start has a limit of its own
            elif time.monotonic() - self._last_answer > SILENT_MAX_S:
                world.report.problem(f"no status for {SILENT_MAX_S:.0f} s")
                self._last_answer = time.monotonic()
            return
        self._last_answer = time.monotonic()
        self._check_versions(status, confirmed)
        self._mend(status)
        self._check_held()

    def _begin_life(self, number):
        self.close()
        self._base, self._life, self._life_begin = {}, number, time.monotonic()
        self.world.book.calls.begin_life(self.world.tree.ready_at - STARTS_S)

    def _status(self):
        try:
            if self._client is None:
                self._client = pitstop.Client(str(self.world.tree.run_dir), timeout=2, name="warden")
            return self._client.status(timeout=STATUS_S)
        except pitstop.PitstopError as error:
            if error.code not in (
                "deadline_exceeded",
                "unavailable",
                "not_found",
                "aborted",
                "failed_precondition",
                "permission_denied",
            ):
                self.world.report.problem(f"status: {error}")
            if error.code != "deadline_exceeded":
                self.close()
            return None

    def _check_versions(self, status, confirmed):
        world = self.world
        self.is_serving = True
        for replica in status["replicas"]:
            has_weights = replica.get("has_weights", True)
            self.has_lost_weights |= self._life > 1 and not has_weights
            self.is_serving &= has_weights and replica["state"] in ("running", "updating")
            epoch, digest = replica.get("epoch", 0), replica.get("digest", "")
            if has_weights and digest:
                label = replica.get("label", "")
                wrong = world.epochs.see(epoch, digest) or world.epochs.see_label(label, digest)
                if wrong:
                    world.report.problem(f"status of life {self._life}: {wrong} (label '{label}')")
                if not world.book.knows(digest):
                    world.report.problem(f"status: epoch {epoch} is {digest}, which nobody sent")
            world.adapters.is_there(each["adapter"]["name"] for each in replica.get("adapters", []))
            for each in replica.get("adapters", []):
                wrong = world.adapters.see(*(each["adapter"][key] for key in ("name", "version", "digest")))
                if wrong:
                    world.report.problem(f"status of life {self._life}: {wrong}")
            if epoch < confirmed:
                world.report.problem(f"life {self._life} is at epoch {epoch}; {confirmed} was answered with OK before")

    def _mend(self, status):
        """Mends what a dead trainer left: a pause, released memory, no weights."""
        if all(
            r["state"] in ("running", "updating", "loading") and r.get("has_weights", True) for r in status["replicas"]
        ):
            self._odd_since = None
            return
        now = time.monotonic()
        self._odd_since = self._odd_since or now
        if now - self._odd_since < LEFT_S:
            return
        self._odd_since = now
        states = sorted({r["state"] for r in status["replicas"]})
        self.world.report.act(f"warden: {' '.join(states)} for {LEFT_S:.0f} s, mends it")
        directory, digest, _ = self.world.checkpoints[0]
        try:
            self._publish(self._client.resume_memory)
        except pitstop.PitstopError:
            pass
        try:
            if not all(r.get("has_weights", True) for r in status["replicas"]):
                reply = self._client.update_weights(str(directory), label="mended", timeout=60)
                self.world.report.count("updates", "a complete one for a tree without weights")
                if reply["digest"] != digest:
                    self.world.report.problem(f"mended: digest {reply['digest']}, sent {digest}")
            self._publish(self._client.continue_generation)
        except pitstop.PitstopError as error:
            self.world.report.count("refused", f"mending: {error.code}")

    def _publish(self, call):
        path = self.world.book.calls.path
        is_done, reply = False, {}
        write(path, who="warden", what="publishes")
        try:
            reply = call(timeout=STATUS_S)
            is_done = call == self._client.continue_generation
        finally:
            digest = (reply.get("update") or {}).get("digest", "")
            write(path, who="warden", what="published", is_continue=is_done, digest=digest)

    def _check_held(self):
        if time.monotonic() - self._life_begin < WARM_S:
            return
        held = self.world.tree.held()
        for name, (pid, kib, descriptors) in held.items():
            base = self._base.setdefault(name, (pid, kib, descriptors))
            if base[0] != pid:
                self._base[name] = (pid, kib, descriptors)
                continue
            allowed = self.world.allowed_growth_kib(name)
            if kib > base[1] + allowed:
                self.world.report.problem(f"{name} holds {kib >> 10} MiB, {base[1] >> 10} at first")
                self._base[name] = (pid, kib, descriptors)
            if descriptors > base[2] + DESCRIPTORS_MAX:
                self.world.report.problem(f"{name} has {descriptors} descriptors, {base[2]} at first")
                self._base[name] = (pid, kib, descriptors)
