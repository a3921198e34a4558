"""The command `pitstop` of the wheel: runs the launcher with the same Python."""

from __future__ import annotations

import os
import sys

from .errors import PitstopError
from .local_tree import launcher


def main() -> None:
    try:
        path = launcher()
    except PitstopError as error:
        sys.exit(f"pitstop: {error.message}")
    os.execv(sys.executable, [sys.executable, str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()
