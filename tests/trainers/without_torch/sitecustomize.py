"""Before a program's first line: what it imports is there."""

import torch  # noqa: F401
