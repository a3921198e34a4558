"""The properties of PyTorch that client/python/pitstop/cuda_tensors.py relies on. A line per fact;
exit code 1 if one does not hold.
"""

import gc
import glob
import sys

import torch

from pitstop import cuda_driver, cuda_tensors

PUSHES = 2000


def shared_files():
    return len(glob.glob("/dev/shm/torch_*"))


def main():
    troubles = []
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, GPU: {torch.cuda.is_available()}", flush=True)
    if not torch.cuda.is_available():
        return 0
    tensor = torch.ones(1 << 20, dtype=torch.bfloat16, device="cuda")
    found = cuda_driver.allocation_of(tensor.data_ptr(), tensor.get_device())
    print(f"its allocation: {found and tensor.data_ptr() - found.begin} bytes before it", flush=True)
    weight = cuda_tensors.CudaTensor.of("w", tensor)
    (uuid, index), *_ = cuda_tensors.visible_gpus().items()
    if not cuda_tensors.can_be_lent([weight], [uuid]):
        troubles.append("a plain tensor cannot be lent")
    if found and found.handle != tensor.untyped_storage()._share_cuda_()[1][-cuda_driver.HANDLE_BYTES :]:
        troubles.append("the driver's handle is not PyTorch's")
    before = shared_files()
    for _ in range(PUSHES):
        cuda_tensors.Lender(uuid, index, [{"w": weight}]).lend({"w": weight})
    after = shared_files()
    print(f"files of shared memory: {before} before, {after} after {PUSHES} pushes", flush=True)
    if after > before + 1:
        troubles.append("pushes leave files of shared memory behind")
    del tensor, weight
    gc.collect()
    print("; ".join(troubles) or "as relied on", flush=True)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
