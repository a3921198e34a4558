"""Progress bars: tqdm's, if it is installed and standard error is a terminal; otherwise none."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Optional


class Progress:
    """A bar of `total` steps. `is_shown` of None: only if standard error is a terminal."""

    def __init__(self, what: str, total: int, is_shown: Optional[bool] = None, unit: str = "it"):
        self._bar: Any = None
        if is_shown is None:
            is_shown = sys.stderr.isatty()
        if is_shown:
            try:
                tqdm = importlib.import_module("tqdm.auto").tqdm
            except ImportError:
                return
            is_bytes = unit == "B"
            self._bar = tqdm(
                total=total,
                desc=what,
                unit=unit,
                unit_scale=is_bytes,
                unit_divisor=1024 if is_bytes else 1000,
                dynamic_ncols=True,
            )

    def go_to(self, num_done: int, total: Optional[int] = None) -> None:
        if self._bar is not None:
            if total is not None:
                self._bar.total = total
            self._bar.update(num_done - self._bar.n)

    def add(self, num_done: int = 1) -> None:
        if self._bar is not None:
            self._bar.update(num_done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
