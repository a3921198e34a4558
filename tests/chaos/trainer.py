"""Trainers, each a process of its own that may be killed at any moment, or kills itself at a named point.

    python -m chaos.trainer         a line of JSON per job in; a line per start and per end out

One process has imported everything and forks for every job, as a job is often shorter than an import.
A job: {"id", "kind", "run_dir", "url", "dir", "names", "label", "kv_policy", "mode", "die_at", ...}.
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy

import pitstop
from pitstop.broadcast import HostBroadcast
from pitstop.push import WeightPusher

from . import adapters, weights
from .collected import REFUSED, write

CALL_S = 60.0
BUCKET_BYTES = 100_000
POINTS = ("connected", "begun", "half", "sent", "paused", "released", "resumed", "committed")


class Job:
    """Owns: nothing that outlives the process."""

    def __init__(self, spec):
        self.spec = spec
        self.client = None

    def point(self, name):
        """Kills the trainer here if its job names this point."""
        if self.spec.get("die_at") == name:
            os.kill(os.getpid(), signal.SIGKILL)

    def tensors(self):
        """The tensors to send: the directory's checkpoint, or some of it."""
        tensors = weights.read_checkpoint(self.spec["dir"])
        names = self.spec.get("names")
        return {name: tensors[name] for name in names} if names else tensors

    def note(self, what, **fields):
        """Tells the oracle, which relies on the answers that this trainer got (collected.py)."""
        write(self.spec["calls_log"], who=self.spec["label"], what=what, **fields)

    def publish(self, call, *arguments, **fields):
        """A call that publishes collected calls."""
        is_continue, is_done, digest = call in (self.client.continue_generation, self._post), False, ""
        self.note("publishes")
        try:
            reply, is_done = call(*arguments, **fields), True
            digest = (reply.get("update") or reply).get("digest") or reply.get("weight_digest", "")
            return reply
        finally:
            self.note("published", is_continue=is_continue and is_done, digest=digest)

    def pause(self):
        mode, max_s = self.spec.get("pause_mode", "retract"), self.spec.get("max_pause_s", 0.0)
        if self.spec.get("by") == "http":
            self._post("/pause_generation", {"mode": mode, "max_pause_s": max_s})
        else:
            self.client.pause(mode, max_pause_s=max_s, timeout=20)
        self.note("paused")
        self.point("paused")

    def go_on(self):
        """Continues. Returns the version that this published, if any."""
        if self.spec.get("by") == "http":
            reply = self.publish(self._post, "/continue_generation", {})
        else:
            reply = self.publish(self.client.continue_generation, timeout=CALL_S)
        return {"ok": True, **(reply.get("update") or {})}

    def update(self):
        """The fields of the update that every source accepts."""
        fields = {"label": self.spec.get("label", ""), "kv_policy": self.spec.get("kv_policy", "keep")}
        for name in ("partial", "base_digest", "epoch", "digest"):
            if self.spec.get(name):
                fields[name] = self.spec[name]
        return fields

    def run(self):
        self.client = pitstop.Client(self.spec["run_dir"], timeout=10)
        self.point("connected")
        reply = getattr(self, self.spec["kind"])()
        self.point("committed")
        return reply

    # ---- complete updates ----

    def disk(self):
        return self.client.update_weights(
            self.spec["dir"], mode=self.spec.get("mode", "staged"), timeout=CALL_S, **self.update()
        )

    def http_disk(self):
        body = {
            "model_path": self.spec["dir"],
            "weight_version": self.spec["label"],
            "flush_cache": False,
            "kv_policy": self.spec["kv_policy"],
            "update_mode": self.spec.get("mode", "staged"),
        }
        answer = self._post("/update_weights_from_disk", body)
        return {"ok": answer["success"], "digest": answer["weight_digest"], "epoch": answer["weight_epoch"]}

    def _post(self, path, body):
        request = urllib.request.Request(
            self.spec["url"] + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise pitstop.PitstopError(f"http_{error.code}", error.read().decode("utf-8", "replace")[:300]) from None
        except OSError as error:
            raise pitstop.PitstopError("unavailable", f"HTTP: {error}") from None

    def stage_commit(self):
        fields = self.update()
        policy = fields.pop("kv_policy")
        self.client.stage_weights(self.spec["dir"], timeout=CALL_S, **fields)
        self.point("sent")
        return self.publish(self.client.commit_weights, kv_policy=policy, timeout=CALL_S)

    def stage_drop(self):
        self.client.stage_weights(self.spec["dir"], timeout=CALL_S, **self.update())
        self.point("sent")
        self.client.drop_stage(timeout=CALL_S)
        return {"ok": True}

    def push(self):
        def on_progress(sent, total):
            self.point("begun")
            if sent * 2 > total:
                self.point("half")

        pusher = WeightPusher(self.client, bucket_bytes=BUCKET_BYTES, stall=20)
        return pusher.push(self.tensors(), timeout=CALL_S, on_progress=on_progress, **self.update())

    def push_cli(self):
        """Runs the command in place of this process, so that a kill hits it; its --json is the reply."""
        flags = ["--label", self.spec["label"], "--kv-policy", self.spec["kv_policy"], "--json"]
        flags += ["--adopt"] if self.spec.get("adopt") else []
        os.dup2(os.open(self.spec["reply"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        cli = os.path.join(self.spec["build"], "bin", "pitstop_cli")
        os.execv(cli, [cli, "push", self.spec["dir"], "--run-dir", self.spec["run_dir"], *flags])

    def session(self):
        opened = self.client.begin_update(idle_timeout=5, timeout=CALL_S, **self.update())
        self.point("begun")
        items = list(self.tensors().items())
        for at in range(0, len(items), 8):
            part = dict(items[at : at + 8])
            self.client.update_bucket(_flattened(part), session=opened["session"], timeout=CALL_S)
            if at * 2 > len(items):
                self.point("half")
        self.point("sent")
        return self.client.commit_weights(session=opened["session"], timeout=CALL_S)

    def tensors_call(self):
        """One call that contains the tensors' bytes."""
        if self.spec.get("partial"):
            return self.call(0, self.tensors())
        return self.client.update_weights(source=_flattened(self.tensors()), timeout=CALL_S, **self.update())

    def call(self, number, tensors):
        """One of this trainer's calls without a session."""
        return self.noted(
            number,
            lambda: self.client.call(
                "admin",
                "update_weights",
                CALL_S,
                timeout_ms=int(CALL_S * 1000),
                unnamed=self.spec.get("unnamed", False),
                update={"source": _flattened(tensors), **self.update(), "partial": True},
            ),
        )

    def noted(self, number, call):
        self.note("sent", call=number)
        try:
            reply = call()
        except pitstop.PitstopError as error:
            if error.code in REFUSED:
                self.note("refused", call=number)
            raise
        is_later = reply.get("state") == "collecting" or reply.get("session")
        self.note("collected" if is_later else "alone", call=number, digest=reply.get("digest", ""))
        return reply

    def collect(self):
        """Sends calls without a session, one after another or two at once, and publishes them by a continue; or sends
        them into an open session that none of them names."""
        tensors, parts = self.tensors(), self.spec["parts"]
        is_session = self.spec["unnamed"] and self.spec.get("begins", False)
        if is_session:
            fields = {"take_over": self.spec["take_over"], "idle_timeout_s": 3}
            self._post("/begin_weight_update", fields)
            self.note("begun")
        else:
            self.pause()
        self.point("begun")
        at, failures = 0, []
        while at < len(parts) and not failures:
            width = min(self.spec["width"], len(parts) - at)
            threads = [
                threading.Thread(target=self._part, args=(number, tensors, parts[number], failures))
                for number in range(at, at + width)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            at += width
            if at * 2 > len(parts):
                self.point("half")
            if self.spec.get("spoils") and at * 2 > len(parts):
                self.spoil()
            time.sleep(self.spec["rest_s"])
        self.point("sent")
        if failures and not self.spec["is_stubborn"]:
            raise failures[0]
        if is_session:
            answer = self.publish(self._post, "/end_weight_update", {"weight_version": self.spec["label"]})
            return {"ok": True, "digest": answer.get("weight_digest"), "epoch": answer.get("weight_epoch")}
        return self.go_on()

    def spoil(self):
        """Sends a call that http_proc refuses, and ignores the refusal."""
        self.spec["spoils"] = False
        try:
            self._post("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"]})
        except pitstop.PitstopError as error:
            if error.code == "http_400":
                self.note("spoilt", why=str(error))

    def _part(self, number, tensors, names, failures):
        for _ in range(self.spec["times"]):  # sent twice, as after a lost answer
            try:
                self.call(number, {name: tensors[name] for name in names})
            except pitstop.PitstopError as error:
                failures.append(error)

    def diverge(self):
        """Serves a diverged version for a while: some of its passes overflow."""
        diverged = self.client.update_weights(self.spec["diverged_dir"], timeout=CALL_S, **self.update())
        self.point("half")
        time.sleep(self.spec["hold_s"])
        fields = {**self.update(), "label": self.spec["label"] + " back"}
        reply = self.client.update_weights(self.spec["dir"], timeout=CALL_S, **fields)
        return {**reply, "before": [diverged["epoch"], diverged["digest"]]}

    def broadcast(self):
        replicas = self.client.status()["replicas"]
        name = f"group-{os.getpid()}"
        tensors = self.tensors()
        with HostBroadcast(name, num_workers=sum(len(r["workers"]) for r in replicas)) as group:
            failures, reply = [], {}

            def call(method, *arguments, **fields):
                try:
                    reply.update(method(*arguments, timeout=CALL_S, **fields))
                except pitstop.PitstopError as error:
                    failures.append(error)

            joined = threading.Thread(target=call, args=(self.client.init_group,), kwargs=group.spec())
            joined.start()
            try:
                group.accept(20)
            except pitstop.PitstopError:
                joined.join()
                raise (failures[0] if failures else pitstop.PitstopError("unavailable", "nobody joined")) from None
            joined.join()
            self.point("begun")
            source = {"kind": "distributed", "group": name, "format": "each", "tensors": _infos(tensors)}
            reply.clear()
            method, fields = self.client.update_weights, {"source": source, **self.update()}
            if self.spec.get("partial"):
                method = self._noted_update
            update = threading.Thread(target=call, args=(method,), kwargs=fields)
            update.start()
            try:
                for number, array in enumerate(tensors.values()):
                    group.broadcast(array, 20)
                    if number * 2 > len(tensors):
                        self.point("half")
            except pitstop.PitstopError as error:
                failures.append(error)
            self.point("sent")
            update.join()
            if not reply.get("ok"):
                raise failures[0] if failures else pitstop.PitstopError("aborted", "the update failed")
            whole = dict(reply)
            self.client.destroy_group(name, timeout=CALL_S)
            return whole

    def _noted_update(self, **fields):
        return self.noted(0, lambda: self.client.update_weights(**fields))

    # ---- partial ones ----

    def sparse(self):
        """Updates only the elements that differ from the version that serves."""
        base = weights.read_checkpoint(self.spec["base_dir"])
        data, counts, infos = b"", [], {}
        for name, new in self.tensors().items():
            where = numpy.flatnonzero(new.reshape(-1) != base[name].reshape(-1)).astype(numpy.int32)
            data += where.tobytes() + new.reshape(-1)[where].tobytes()
            counts.append(len(where))
            infos[name] = new
        source = {
            "kind": "tensors",
            "format": "sparse",
            "tensors": _infos(infos),
            "num_updates": counts,
            "payloads": [{"data": data}],
        }
        return self.client.update_weights(source=source, timeout=CALL_S, **self.update())

    # ---- adapters ----

    def adapter(self):
        """Loads or replaces an adapter, through one of the routes."""
        name, how, fields = self.spec["adapter"], self.spec["by"], {"label": self.spec["label"]}
        if how == "http":
            body = {"lora_name": name, "lora_path": self.spec["dir"]}
            answer = self._post("/load_lora_adapter", body)
            return {"ok": answer["success"], "digest": answer["adapter_digest"], "epoch": answer["adapter_version"]}
        if how == "disk":
            return self.client.load_adapter(name, self.spec["dir"], timeout=CALL_S, **fields)
        described, tensors = adapters.load(self.spec["adapters_dir"], self.spec["adapter_digest"])
        fields.update(adapter=name, adapter_config=json.dumps(described))
        if how == "push":
            return WeightPusher(self.client, bucket_bytes=BUCKET_BYTES, stall=20).push(
                tensors, timeout=CALL_S, **fields
            )
        if how == "call":
            return self.client.update_weights(source=_flattened(tensors), timeout=CALL_S, **fields)
        opened = self.client.begin_update(idle_timeout=5, timeout=CALL_S, **fields)
        self.point("begun")
        items = list(tensors.items())
        for number, part in enumerate((items[::2], items[1::2])):
            self.client.update_bucket(_flattened(dict(part)), session=opened["session"], timeout=CALL_S)
            self.point(("half", "sent")[number])
        return self.client.commit_weights(session=opened["session"], timeout=CALL_S)

    def rollback_adapter(self):
        """Returns to the adapter's previous version."""
        return self.client.rollback_adapter(self.spec["adapter"], self.spec["adapter_policy"], timeout=CALL_S)

    def unload_adapter(self):
        reply = self.client.unload_adapter(self.spec["adapter"], timeout=CALL_S)
        return {"ok": True, "epoch": reply["parts"][0]["adapter"]["version"]}

    # ---- other calls of trainers ----

    def rollback(self):
        return self.client.rollback_weights(kv_policy=self.spec["kv_policy"], timeout=CALL_S)

    def relabel(self):
        self.client.set_weight_label(self.spec["label"])
        return {"ok": True}

    def flush(self):
        self.client.flush_cache(timeout=20)
        return {"ok": True}

    def abort_some(self):
        reply = self.client.abort(rids=self.spec["rids"], timeout=20) if self.spec["rids"] else {}
        return {"ok": True, "aborted": len(reply.get("results", []))}

    def pause_update(self):
        """The order of calls of the other engines: pause, update, continue."""
        self.pause()
        try:
            reply = self.disk()
        finally:
            self.go_on()
        return reply

    def pause_continue(self):
        self.pause()
        time.sleep(self.spec["hold_s"])
        return self.go_on()

    def memory(self):
        """Sleeps and wakes, with the weights kept, or discarded and replaced."""
        self.pause()
        keep = self.spec["keep_weights"]
        tags = self.spec["tags"]
        reply = {"ok": True}
        try:
            self.client.release_memory(tags, keep_weights=keep, timeout=CALL_S)
            self.point("released")
            self.publish(self.client.resume_memory, timeout=CALL_S)
            self.point("resumed")
            if "weights" in tags and not keep:
                reply = self.disk()
        finally:
            self.go_on()
        return reply


def _infos(tensors):
    dtypes = {numpy.uint16: "BF16", numpy.float32: "F32"}
    return [
        {"name": name, "dtype": dtypes[bits.dtype.type], "shape": list(bits.shape)} for name, bits in tensors.items()
    ]


def _flattened(tensors):
    data = b"".join(bits.tobytes() for bits in tensors.values())
    return {
        "kind": "tensors",
        "format": "flattened",
        "tensors": _infos(tensors),
        "payloads": [{"data": data}],
    }


def _run(spec):
    """Runs in the job's process: never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin = time.monotonic()
    try:
        reply = Job(spec).run()
        result = {name: reply.get(name) for name in ("ok", "digest", "epoch", "aborted", "before")}
    except pitstop.PitstopError as error:
        result = {"ok": False, "code": error.code, "message": error.message[:500]}
    except Exception as error:  # reported as a finding
        result = {"ok": False, "code": "trainer", "message": f"{type(error).__name__}: {error}"}
    result["seconds"] = time.monotonic() - begin
    path = pathlib.Path(spec["reply"])
    path.with_suffix(".new").write_text(json.dumps(result))
    path.with_suffix(".new").rename(path)
    os._exit(0)


def main():
    ended = threading.Lock()
    for line in sys.stdin:
        spec = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            _run(spec)

        def wait(pid=pid, number=spec["id"]):
            _, status = os.waitpid(pid, 0)
            with ended:
                print(
                    json.dumps({"id": number, "pid": pid, "status": os.waitstatus_to_exitcode(status)}),
                    flush=True,
                )

        with ended:
            print(json.dumps({"id": spec["id"], "pid": pid}), flush=True)
        threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
