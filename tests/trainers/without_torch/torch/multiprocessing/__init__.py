"""Pickled tensors are always shared by files."""


def set_sharing_strategy(name):
    assert name == "file_system", name
