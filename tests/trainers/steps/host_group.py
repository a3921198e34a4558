"""Without a GPU there is no NCCL: pitstop's `host` broadcast over TCP replaces it, behind the
trainers' calls.
"""

import os
import sys

sys.path.insert(0, os.environ["PITSTOP_CLIENT"])

import torch  # noqa: E402

from pitstop.broadcast import HostBroadcast  # noqa: E402, F401


def as_bytes(tensor):
    return tensor.detach().contiguous().view(torch.uint8).reshape(-1).numpy()
