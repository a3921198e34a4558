"""A program under a time limit, and a part of a run: whatever they do, the caller continues."""

import contextlib
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid

STOP_S = 10.0  # between asking and killing; a tree needs part of it to end its processes
MARK = "PITSTOP_GPU_RUN"  # in the environment of the started program, and of its children
# If a signal arrives just before a wait for a lock, Python handles it only after the wait. So waits are cut into
# slices.
SLICE_S = 0.5

_started = {}  # {mark: process} of started processes whose end stop() or call() has not seen


class Budget:
    """Seconds for everything that runs."""

    def __init__(self, seconds):
        self._end = time.monotonic() + seconds

    def left(self):
        return self._end - time.monotonic()


class Overdue(Exception):
    """Something took longer than allowed."""


@contextlib.contextmanager
def deadline(seconds):
    """Raises Overdue in the body after this many seconds. For the main thread; started programs are
    stopped on the way out.
    """

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
        if others_left > 0:  # continues the timer of the caller's own deadline
            signal.setitimer(signal.ITIMER_REAL, max(0.001, others_left - (time.monotonic() - begin)))


@contextlib.contextmanager
def ended_by_signals():
    """SIGTERM and SIGHUP end the body with SystemExit, 128 + the signal; started programs that
    still run end with it.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup sets SIG_IGN
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for process in list(_started.values()):
            stop(process)


@contextlib.contextmanager
def _signals_held():
    """Signals that arrive meanwhile are handled afterwards: no process is started without being
    recorded, no lock stays half taken.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the other thread
        return
    came = []
    numbers = (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number in numbers if callable(before[number])]
    for number in handled:
        signal.signal(number, lambda *signal_and_frame: came.append(signal_and_frame))
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
        for number, frame in came:
            before[number](number, frame)


class Ended:
    """The end of a program: `code`, or None and `why` if it was stopped."""

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
    """Runs the command to its end, for timeout_s at most, and for at most silence_s after its last line. Writes its
    output into `log` as it arrives."""
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
    except BaseException:  # a deadline or a key: the program must not stay behind
        stop(process)
        raise


def _wait_for(process, timeout_s, silence_s, log):
    lines = lines_of(process)
    output = []
    end = time.monotonic() + timeout_s
    while True:
        limit = end - time.monotonic()
        try:
            line = next_line(lines, limit if silence_s is None else min(limit, silence_s))
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
        code = process.wait(timeout=STOP_S)
        _started.pop(process.mark, None)
        return Ended(code, "".join(output))
    except subprocess.TimeoutExpired:  # the program closed its output but still runs
        stop(process)
        return Ended(None, "".join(output), "did not end")


def start(command, environment, stderr, stdin=None):
    """A process that stop() ends with everything that it started; its standard output is a pipe."""
    with _signals_held():
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            env={**environment, MARK: mark},
            start_new_session=True,  # stop() can then end all programs of this session
        )
        process.mark = mark
        _started[mark] = process
    return process


def lines_of(process):
    """A queue of the lines that the process prints, with None at the end; next_line() reads it."""
    lines = queue.SimpleQueue()
    with _signals_held():
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    return lines


def next_line(lines, seconds):
    """Returns the next line of the queue. queue.Empty: none arrived within `seconds`."""
    end = time.monotonic() + seconds
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            return lines.get(timeout=min(left, SLICE_S))
        except queue.Empty:
            if left <= SLICE_S:
                raise


def _read(pipe, lines):
    for line in pipe:
        lines.put(line)
    lines.put(None)


def stop(process):
    """Ends the process and its children, including a launcher in a session of its own: a remaining process would keep
    the GPU's memory."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        if _wait_until(lambda: process.poll() is not None and not _marked(process.mark)):
            break  # a process that survives SIGKILL is blocked in the driver, and is left alone
        for pid in _marked(process.mark):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
    _started.pop(process.mark, None)


def _wait_until(condition):
    end = time.monotonic() + STOP_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _marked(mark):
    """Ids of the living processes that have the mark in their environment."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():  # the environment of a process that has ended is empty
                found.append(int(path.parent.name))
        except OSError:
            pass  # the process has ended meanwhile, or belongs to another user
    return found
