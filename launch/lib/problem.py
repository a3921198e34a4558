"""The errors of this program, and their exit codes.

The exit codes are part of the interface (docs/running.md lists them, and a test compares).
"""

import errno
import resource

EXIT_OK = 0
EXIT_USAGE = 2  # a flag
EXIT_START = 3  # a process could not start: for example its model, its memory, its files
EXIT_PLACE = 4  # the run directory cannot be used, or the programs are not built

# The exit code when a process died while serving, by the process's kind.
EXIT_DIED = {
    "tokenizer_proc": 10,
    "scheduler_proc": 11,
    "detokenizer_proc": 12,
    "tp_worker": 13,
    "http_proc": 14,
}


class Problem(Exception):
    """Ends the program with one line and an exit code."""

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code

    @classmethod
    def of(cls, what, error, exit_code):
        """Makes a Problem of an OSError, with advice if there is any."""
        hint = ""
        if error.errno == errno.EMFILE:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            hint = f"; this program may have {limit} (ulimit -n)"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "; make room there, or name another place"
        place = f" ({error.filename})" if error.filename else ""
        return cls(f"{what}: {error.strerror or error}{place}{hint}", exit_code)
