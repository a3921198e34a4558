"""A tree that serves a model on the GPU, for a part that sends it requests."""

import pathlib
import queue
import shutil
import tempfile

from timed_call import lines_of, next_line, start, stop

ROOT = pathlib.Path(__file__).resolve().parents[2]


class NotServed(Exception):
    """The reason why there is no tree."""


class Served:
    """with Served(model, flags, environment, timeout_s) as client: ... The tree's log is appended to `log` at its end."""

    def __init__(self, model, flags, environment, timeout_s, log=None):
        self._kept_log = log
        self._command = [ROOT / "launch" / "pitstop", "serve", "--no-http", f"--model={model}", "--device=cuda", *flags]
        self._environment = environment
        self._timeout_s = timeout_s
        self._folder = None
        self._process = None
        self._client = None
        self.run_dir = None  # the tree's, once it exists

    def __enter__(self):
        try:
            import pitstop  # imported here: the bundle's pyzmq is for one version of Python
        except ImportError as error:
            raise NotServed(f"the Python client cannot be imported: {error}") from error
        self._folder = tempfile.mkdtemp(prefix="pitstop-gpu-")
        self.run_dir = run_dir = pathlib.Path(self._folder) / "run"
        self._log = open(pathlib.Path(self._folder) / "log", "w+")
        self._process = start([*self._command, f"--run-dir={run_dir}"], self._environment, stderr=self._log)
        try:
            if not self._is_ready():
                raise NotServed(f"the tree did not start: {self._last_lines()}")
            self._client = pitstop.Client(str(run_dir), timeout=30.0)
        except Exception:
            self._end()
            raise
        return self._client

    def __exit__(self, *_):
        self._end()

    def _is_ready(self):
        """The launcher prints one line when every process is ready."""
        try:
            return next_line(lines_of(self._process), self._timeout_s) is not None
        except queue.Empty:
            return False

    def _last_lines(self):
        self._log.seek(0)
        return " / ".join(line.strip() for line in self._log.read().splitlines()[-4:]) or "no line within its time"

    def _end(self):
        if self._client is not None:
            self._client.close()
        stop(self._process)
        if self._kept_log is not None:
            self._log.seek(0)
            self._kept_log.write(self._log.read())
            self._kept_log.flush()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
