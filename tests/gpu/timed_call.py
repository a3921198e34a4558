"""A program under a time limit, and a part of a run: whatever they do, the caller goes on."""

import contextlib
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time
import uuid

STOP_S = 10.0  # between asking and killing; a tree needs some of it to end its processes
MARK = "PITSTOP_GPU_RUN"  # in the environment of what is started, and of what that starts


class Budget:
    """Seconds for all that is run."""

    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def left(self):
        return self._end - time.monotonic()


class Overdue(Exception):
    """Something took longer than it may, whatever it waits for."""


@contextlib.contextmanager
def deadline(seconds):
    """Overdue in the body where it takes longer. The main thread's; what was started is stopped on the way out."""

    def ring(*_):
        raise Overdue(f"stopped after {seconds:.0f} s")

    begin = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    others_left, _ = signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if others_left > 0:  # somebody else's, who goes on waiting for it
            signal.setitimer(signal.ITIMER_REAL, max(0.001, others_left - (time.monotonic() - begin)))


class Ended:
    """How a program ended: `code`, or None where it was stopped, and then `why`."""

    def __init__(self, code, output, why=""):
        self.code = code
        self.output = output
        self.why = why

    def last_lines(self, num=6):
        lines = [line.strip() for line in self.output.strip().splitlines()[-num:]]
        if self.code is not None and self.code < 0:
            lines.append(f"ended by {signal.Signals(-self.code).name}")
        return " / ".join([*lines, self.why] if self.why else lines)


def call(command, environment, timeout_s, silence_s=None, log=None):
    """Runs it to its end, for timeout_s at most, and at most silence_s after its last line. What it says is written into
    `log` as it comes."""
    if log is not None:
        log.write(f"$ {' '.join(str(word) for word in command)}\n")
    try:
        process = start(command, environment, stderr=subprocess.STDOUT)
    except OSError as error:
        return Ended(127, str(error))
    try:
        ended = _wait_for(process, timeout_s, silence_s, log)
        if log is not None:
            log.write(f"# {ended.why or f'exit code {ended.code}'}\n")
        return ended
    except BaseException:  # a deadline, a key: it does not stay behind
        stop(process)
        raise


def _wait_for(process, timeout_s, silence_s, log):
    lines = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    output = []
    end = time.monotonic() + timeout_s
    while True:
        limit = end - time.monotonic()
        try:
            line = lines.get(timeout=max(0.0, limit if silence_s is None else min(limit, silence_s)))
        except queue.Empty:
            what = f"{timeout_s:.0f} s" if end <= time.monotonic() else f"{silence_s:.0f} s of silence"
            stop(process)
            return Ended(None, "".join(output), f"stopped after {what}")
        if line is None:
            break
        output.append(line)
        if log is not None:
            log.write(line)
            log.flush()
    try:
        return Ended(process.wait(timeout=STOP_S), "".join(output))
    except subprocess.TimeoutExpired:  # it closed its output and stays
        stop(process)
        return Ended(None, "".join(output), "did not end")


def start(command, environment, stderr, stdin=None):
    """A process that stop() ends with all that it started, its standard output a pipe."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        errors="replace",
        env={**environment, MARK: mark},
        start_new_session=True,  # so that what it starts in its session can be stopped with it
    )
    process.mark = mark
    return process


def _read(pipe, lines):
    for line in pipe:
        lines.put(line)
    lines.put(None)


def stop(process):
    """Ends it and its children, a launcher in a session of its own among them: what stays holds the GPU's memory."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        if _wait_until(lambda: process.poll() is not None and not _marked(process.mark)):
            return  # or it is held up in the driver, perhaps, and left alone
        for pid in _marked(process.mark):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


def _wait_until(condition):
    end = time.monotonic() + STOP_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _marked(mark):
    """Ids of the living processes that have it in their environment."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():  # empty of a process that has ended
                found.append(int(path.parent.name))
        except OSError:
            pass  # it has ended meanwhile, or is another user's
    return found
