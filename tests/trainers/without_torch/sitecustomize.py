"""Runs before a program's first line, so that its imports work."""

import torch  # noqa: F401
