"""Says what may go wrong outside this program, and what a shell is told about it.

The exit codes are part of the interface (docs/running.md lists them, and a test compares).
"""

import errno
import resource

EXIT_OK = 0
EXIT_USAGE = 2  # a flag
EXIT_START = 3  # a process could not start: its model, its memory, its files
EXIT_PLACE = 4  # the run directory, or the programs are not built

# A process died while serving: its kind says which code.
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
        """Makes one from what the system said (an OSError), with what would help where that is known."""
        hint = ""
        if error.errno == errno.EMFILE:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            hint = f"; this program may have {limit} (ulimit -n)"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "; make room there, or name another place"
        place = f" ({error.filename})" if error.filename else ""
        return cls(f"{what}: {error.strerror or error}{place}{hint}", exit_code)
