"""serialized_named_tensors without PyTorch: the pickle that torch's file_system strategy makes of CPU tensors, and the shared
memory that it names. Source: torch/multiprocessing/reductions.py; pickletools of tests/data/pickle/d_parameter_*."""

import contextlib
import io
import itertools
import os
import pickle
import struct

REFERENCES = 2  # the sender's own, and the one that it lends to the receiver
HEADER = struct.pack("<i60x", REFERENCES)
numbers = itertools.count()


def pickled(value):
    """The opcodes of a value, without the protocol before them and the STOP after them; without a memo."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 2)
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()[2:-1]


def name_of(module, name):
    return pickled(module) + pickled(name) + b"\x93"


def tuple_of(*items):
    return b"(" + b"".join(items) + b"t"


def call(name, *arguments):
    return name_of("torch.multiprocessing.reductions", name) + tuple_of(*arguments) + b"R"


def memory(text):
    """The opcodes of a bytes object, for which protocol 2 has no opcode of its own."""
    return b"C" + bytes([len(text)]) + text


def pickle_of(array, segment):
    """A bfloat16 tensor (uint16 here) in a segment of shared memory."""
    strides = [stride // array.itemsize for stride in array.strides]
    storage = call(
        "rebuild_storage_filename",
        name_of("torch.storage", "UntypedStorage"),
        memory(b"/tmp/manager.sock"),
        memory(segment.encode()),
        pickled(array.nbytes),
    )
    typed = call("rebuild_typed_storage", storage, name_of("torch", "bfloat16"))
    size = name_of("torch", "Size") + tuple_of(tuple_of(*map(pickled, array.shape))) + b"R"
    metadata = tuple_of(pickled(0), size, tuple_of(*map(pickled, strides)), pickled(False))
    return call("rebuild_tensor", name_of("torch", "Tensor"), typed, metadata)


@contextlib.contextmanager
def shared(tensors):
    """A payload of these arrays for one rank. Memory that the receiver leaves is removed at the end."""
    segments, items = [], b""
    for name, array in tensors.items():
        segments.append(f"/torch_{os.getpid()}_{id(tensors) % 2**31}_{next(numbers)}")
        with open(f"/dev/shm{segments[-1]}", "wb") as file:
            file.write(HEADER + array.tobytes())
        items += tuple_of(pickled(name), pickle_of(array, segments[-1]))
    try:
        yield b"\x80\x04](" + items + b"e."
    finally:
        for segment in segments:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"/dev/shm{segment}")
