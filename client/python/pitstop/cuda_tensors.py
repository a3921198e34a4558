"""PyTorch tensors in GPU memory, lent to the workers of the same GPUs through CUDA IPC. No byte of them passes through
host memory, and nothing is pickled (messages/push.h)."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy

from . import cuda_driver
from .errors import PitstopError

BUCKET_BYTES = 256 << 20  # bytes lent at a time; copies for another GPU need the same amount again
ALIGNMENT = 256  # of copies
DIGEST_WORDS = 4 << 20  # words at a time: the digest needs about ten times their bytes of memory
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
MASK32 = 0xFFFFFFFF


def _signed(word: int) -> int:
    """A 64-bit word as PyTorch's signed integer."""
    return word - (1 << 64) if word >> 63 else word


MIX_STEP, MIX_1, MIX_2 = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclasses.dataclass(frozen=True)
class CudaTensor:
    """A weight in a GPU's memory, with the attributes of a NumPy array that a push reads."""

    tensor: Any  # a contiguous torch.Tensor

    @classmethod
    def of(cls, name: str, tensor: Any) -> CudaTensor:
        """TypeError: a dtype that no weight has."""
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in DTYPES:
            raise TypeError(f"{name}: dtype {kind}; accepted are float32, float16 and bfloat16")
        return cls(tensor.detach().contiguous())

    @property
    def dtype_name(self) -> str:
        return DTYPES[str(self.tensor.dtype).removeprefix("torch.")]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def pointer(self) -> int:
        return self.tensor.data_ptr()

    def digest(self) -> str:
        return digest_of(self.tensor)

    def in_host(self) -> numpy.ndarray:
        return host_array(self.tensor)


def host_array(tensor: Any) -> numpy.ndarray:
    """PyTorch's tensor as an array in host memory, copied only if it is on a GPU; bfloat16 as uint16."""
    import torch

    flat = tensor.detach().cpu().contiguous()
    return flat.view(torch.int16).numpy().view(numpy.uint16) if flat.dtype == torch.bfloat16 else flat.numpy()


def digest_of(tensor: Any) -> str:
    """digests.tensor_digest of PyTorch's bfloat16 tensor, computed in place. Sums wrap in the same way."""
    import torch

    flat = tensor.detach().contiguous()
    rows = flat.reshape(-1, flat.shape[-1]) if flat.dim() else flat.reshape(1, 1)
    words_per_row = -(-rows.shape[1] // 4)
    rows_at_once = max(1, DIGEST_WORDS // max(1, words_per_row))
    lanes = [0, 0]
    for begin in range(0, rows.shape[0], rows_at_once):
        part = rows[begin : begin + rows_at_once].view(torch.int16)
        part = torch.nn.functional.pad(part, (0, 4 * words_per_row - part.shape[1])).contiguous()
        word = part.view(torch.int64).reshape(-1)
        first = begin * words_per_row + 1
        number = torch.arange(first, first + word.numel(), dtype=torch.int64, device=word.device)
        z = word + number * MIX_STEP
        for bits, factor in ((30, MIX_1), (27, MIX_2), (31, None)):
            z = z ^ ((z >> bits) & ((1 << (64 - bits)) - 1))  # shifts of signed words keep the sign
            z = z if factor is None else z * factor
        lanes[0] += int(z.sum())
        lanes[1] += int((((z >> 32) & MASK32) * (z & MASK32)).sum())
    return "".join(f"{lane % (1 << 64):016x}" for lane in lanes)


def visible_gpus() -> dict[str, int]:
    """{the name that workers have for a visible GPU: PyTorch's number of the GPU}; {} if PyTorch knows no UUIDs."""
    import torch

    found = {}
    for index in range(torch.cuda.device_count()):
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if uuid is not None:
            found[f"GPU-{str(uuid).removeprefix('GPU-')}"] = index
    return found


class Lender:
    """Lends a push's tensors to the worker of one GPU, a bucket at a time.

    Workers keep each allocation open until the push ends, so none may be freed earlier. Copies of other GPUs' tensors
    therefore use one allocation, which every bucket reuses.
    """

    def __init__(self, device_uuid: str, index: int, buckets: Iterable[Mapping[str, CudaTensor]]):
        import torch

        self._device_uuid = device_uuid
        self._index = index
        size = max((sum(map(_room, filter(self._is_elsewhere, bucket.values()))) for bucket in buckets), default=0)
        self._copies = None
        if size:
            size = max(size, cuda_driver.BLOCK_BYTES)
            self._copies = torch.empty(size, dtype=torch.uint8, device=f"cuda:{index}")

    def lend(self, bucket: Mapping[str, CudaTensor]) -> dict[str, list[dict[str, Any]]]:
        """Returns the fields of this bucket's push_bucket. REQUIRES: workers have read the previous bucket.
        PitstopError: memory that no other process can open."""
        import torch

        numbers: dict[bytes, int] = {}
        entries = []
        end = 0  # the end of the copies so far
        for name, each in bucket.items():
            tensor = each.tensor
            if self._is_elsewhere(each):
                tensor = self._copies.narrow(0, end, each.nbytes).view(tensor.dtype)
                tensor.copy_(each.tensor.reshape(-1))
                end += _room(each)
            found = cuda_driver.allocation_of(tensor.data_ptr(), self._index)
            if found is None:
                raise PitstopError(
                    "unavailable", f"'{name}' is in memory of cuda:{self._index} that has no CUDA IPC handle"
                )
            number = numbers.setdefault(found.handle, len(numbers))
            place = {"offset": tensor.data_ptr() - found.begin, "allocation": number}
            entries.append({"name": name, "dtype": each.dtype_name, "shape": list(each.shape), **place})
        torch.cuda.synchronize(self._index)  # workers read the memory as soon as a message names it
        allocations = [{"handle": handle.hex(), "device_uuid": self._device_uuid} for handle in numbers]
        return {"tensors": entries, "allocations": allocations}

    def _is_elsewhere(self, each: CudaTensor) -> bool:
        return each.tensor.get_device() != self._index


def _room(each: CudaTensor) -> int:
    return -(-each.nbytes // ALIGNMENT) * ALIGNMENT


def can_be_lent(tensors: Iterable[CudaTensor], devices: Sequence[str]) -> bool:
    """Whether this program sees every worker's GPU, and another process can open this kind of memory."""
    gpus = visible_gpus()
    if not devices or any(device not in gpus for device in devices):
        return False
    return all(cuda_driver.allocation_of(each.pointer, each.tensor.get_device()) is not None for each in tensors)


def buckets_of(tensors: Mapping[str, CudaTensor]) -> Iterator[dict[str, CudaTensor]]:
    """Buckets of at most BUCKET_BYTES, or of a single larger tensor. No bucket is empty."""
    bucket: dict[str, CudaTensor] = {}
    size = 0
    for name, each in tensors.items():
        if bucket and size + each.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = each
        size += each.nbytes
    if bucket:
        yield bucket
