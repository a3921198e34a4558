"""A model is anything that names its parameters."""

from ..nothing import Nothing


class Module(Nothing):
    pass


def Parameter(tensor, requires_grad=True):  # noqa: N802 (as PyTorch has it)
    return tensor


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing
