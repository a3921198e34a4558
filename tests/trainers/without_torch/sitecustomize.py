"""Python runs this before a program's first line, so that the program's imports work."""

import torch  # noqa: F401
