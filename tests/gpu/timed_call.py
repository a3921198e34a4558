"""A program under a time limit: whatever it does, the caller goes on."""

import os
import queue
import signal
import subprocess
import threading
import time

STOP_S = 10.0  # between asking and killing; a tree needs some of it to end its processes


class Budget:
    """Seconds for all that is run."""

    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def left(self):
        return self._end - time.monotonic()


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


def call(command, environment, timeout_s, silence_s=None):
    """Runs it to its end, for timeout_s at most, and at most silence_s after its last line."""
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # so that what it starts can be stopped with it
        )
    except OSError as error:
        return Ended(127, str(error))
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
            _stop(process)
            return Ended(None, "".join(output), f"stopped after {what}")
        if line is None:
            break
        output.append(line)
    try:
        return Ended(process.wait(timeout=STOP_S), "".join(output))
    except subprocess.TimeoutExpired:  # it closed its output and stays
        _stop(process)
        return Ended(None, "".join(output), "did not end")


def _read(pipe, lines):
    for line in pipe:
        lines.put(line)
    lines.put(None)


def _stop(process):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(timeout=STOP_S)
            return
        except subprocess.TimeoutExpired:
            continue  # held up in the driver, perhaps: it is left alone
