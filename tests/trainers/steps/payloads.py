"""The content that SGLang's trainers put into /update_weights_from_tensor, made with PyTorch's own
reductions.

shim: on a CPU there is no CUDA IPC; tensors are shared by files instead.
"""

import io
from multiprocessing.reduction import ForkingPickler

import torch

torch.multiprocessing.set_sharing_strategy("file_system")


def shared(pairs):
    """Copies of the tensors that one payload may lend: a set for each rank and call."""
    return [(name, tensor.clone().share_memory_()) for name, tensor in pairs]


def pickled(value):
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(value)
    return buffer.getvalue()
