#!/usr/bin/env python3
"""Properties that only the machine code of CUDA's kernels shows: ptxas moves instructions that PTX
has in the right order.

    machine_code.py [--arch=sm_90a] OBJECT...     exit code 1 if a kernel has one of these faults, 77 without cuobjdump

* A kernel reads or writes memory before it waits for the kernel before it (ACQBULK). ptxas moves reads of memory that
  is `const __restrict__` (LDG.CONSTANT) above the wait.
* The softmax of prefill by wgmma runs after the products of the values, not beside them: ptxas moves the second wait
  (WARPGROUP.DEPBAR) above the softmax of the first.
* The copies of products of experts by wgmma run after the products, not beside them: ptxas moves a wait
  (WARPGROUP.DEPBAR) above the copies, or waits between the products (HGMMA).
* A loop of copies (LDGSTS) has more other instructions for each copy than is accepted here.
* The merge of decode's records has fewer reads under way than MERGE_READS.
* Copies of rows or of an exchange load, store, load, store: one load is under way at a time.
* Attention reads global memory by an instruction that must find out first whose memory it is (LD, not LDG).

An OBJECT is a file that nvcc wrote, or a cubin. cuobjdump comes with NVIDIA's toolkit or `pip install
nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`.
"""

import argparse
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NOT_RUN = 77
TOUCHES_MEMORY = re.compile(r"\b(LDG|LD|LDGSTS|STG|ST|ATOM|ATOMG|RED)\b[. ]")
ORDER_OF_PRODUCTS = {"HGMMA": "P", "LDGSTS": "C", "WARPGROUP.DEPBAR": "W"}
EX2_OF_A_TILE = 64  # a thread's scores of a tile
# Kernels whose loop of copies is checked, and the accepted number of other instructions per copy.
# CUDA 13.0 gives 10 to 13, 15 and 10 to 20. If a kernel computes rows and addresses anew for each
# copy, the numbers are 18 to 51 and 53 to 66. Decode's loop also has a tile's softmax: 27 and 41, or
# 36 and 50 with the rows exchanged one at a time.
LOOPS_OF_COPIES = {
    "prefill_wgmma_kernel": 16,
    "expert_wgmma_kernel": 20,
    "tile_kernel": 25,
    "split_kernel": 25,
    "decode_kernelILi128E": 30,
    "decode_kernelILi64E": 45,
}
BATCHED_COPIES = ("one_shot_kernel", "two_shot_kernel", "all_gather_kernel", "gather_rows_kernelI5uint4")
LOADS_AT_ONCE = 4
READ_GLOBAL_MEMORY = ("decode_kernel", "prefill_kernel", "prefill_wgmma_kernel", "attention_general")
MERGE_READS = 32  # eight records of four heads


def find_tool():
    """cuobjdump: on the path, of a toolkit, or of a Python package."""
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    found = [shutil.which("cuobjdump"), *(shutil.which("cuobjdump", path=f"{each}/bin") for each in places if each)]
    for path in sys.path:
        found += sorted(glob.glob(f"{path}/nvidia/*/bin/cuobjdump"))
        found += sorted(glob.glob(f"{path}/triton/backends/nvidia/bin/cuobjdump"))
    return next((each for each in found if each), None)


def functions_of(text):
    """{kernel: [(address, instruction)]} of cuobjdump's listing."""
    found, name = {}, None
    for line in text.splitlines():
        if begin := re.search(r"Function : (\S+)", line):
            name = begin[1]
            found[name] = []
        elif name and (code := re.match(r"\s+/\*([0-9a-f]{4,6})\*/\s+(.*?);", line)):
            found[name].append((int(code[1], 16), code[2].strip()))
    return found


def disassemble(tool, path, arch):
    """The kernels of one object; of a fat binary, those for `arch`."""
    path = pathlib.Path(path).resolve()
    if path.suffix == ".cubin":
        return functions_of(subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tool, "-xelf", arch, path], cwd=folder, capture_output=True, check=True)
        for cubin in pathlib.Path(folder).glob("*.cubin"):
            found.update(disassemble(tool, cubin, arch))
    return found


def early_accesses(code):
    texts = [text for _, text in code]
    wait = next((i for i, text in enumerate(texts) if "ACQBULK" in text), None)
    early = [text for text in texts[:wait] if TOUCHES_MEMORY.search(text)] if wait is not None else []
    return [f"{each} comes before its wait for the kernel before it" for each in early]


def late_softmaxes(name, code):
    """A tile's exponentials are computed between a wait that leaves a group in progress and the next wait."""
    found, num_ex2 = [], None
    if "prefill_wgmma_kernel" not in name:
        return []
    for _, text in code:
        if "WARPGROUP.DEPBAR" in text:
            if num_ex2 is not None and num_ex2 < EX2_OF_A_TILE:
                found.append(
                    f"{num_ex2} MUFU.EX2 between the two waits, not {EX2_OF_A_TILE}: the softmax comes after both"
                )
            num_ex2 = 0 if re.search(r"gsb0, 0x1\b", text) else None
        elif num_ex2 is not None and "MUFU.EX2" in text:
            num_ex2 += 1
    return found


def late_copies(name, code):
    """The loop of a kernel of experts issues a stage's products, then copies, then waits for the previous products."""
    if "expert_wgmma_kernel" not in name:
        return []
    orders = []
    for begin, end in loops(code):
        texts = [text for _, text in code[begin : end + 1]]
        order = "".join(letter for text in texts for word, letter in ORDER_OF_PRODUCTS.items() if word in text)
        if "P" in order:
            orders.append(order)
    if len(orders) == 1 and re.fullmatch(r"P+C+W", orders[0]):
        return []
    return [f"products (P), copies (C) and waits (W) come in the order {' and '.join(orders) or 'of no loop'}"]


def loops(code):
    """(begin, end) of each innermost loop, as indices."""
    index = {address: i for i, (address, _) in enumerate(code)}
    found = []
    for i, (address, text) in enumerate(code):
        target = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if target and int(target[1], 16) < address:
            found.append((index[int(target[1], 16)], i))
    return [
        each
        for each in found
        if not any(other != each and each[0] <= other[0] and other[1] <= each[1] for other in found)
    ]


def slow_copies(name, code):
    """Checks the loop with the most copies; products in it do not count."""
    bound = next((bound for kernel, bound in LOOPS_OF_COPIES.items() if kernel in name), None)
    bodies = [[text for _, text in code[begin : end + 1]] for begin, end in loops(code)] if bound else []
    most = max(bodies, key=lambda texts: sum("LDGSTS" in text for text in texts), default=[])
    num_copies = sum("LDGSTS" in text for text in most)
    others = sum(not re.search(r"LDGSTS|MMA|LDSM|BAR|DEPBAR|NOP", text) for text in most)
    if num_copies == 0 or others <= bound * num_copies:
        return []
    return [f"a loop of {num_copies} copies has {others} other instructions; {bound} a copy are accepted"]


def serial_copies(name, code):
    """For a kernel that copies in batches: the most loads before a store, in a loop with as many
    stores as loads.
    """
    if not any(kernel in name for kernel in BATCHED_COPIES):
        return []
    most = 0
    for begin, end in loops(code):
        kinds = "".join(kind_of_access(text) for _, text in code[begin : end + 1])
        if kinds.count("L") == kinds.count("S"):
            most = max([most, *map(len, kinds.split("S"))])
    return [] if most >= LOADS_AT_ONCE else [f"{most} loads of 16 bytes come before a store, not {LOADS_AT_ONCE}"]


def serial_merges(name, code):
    """The most reads before the first sum, in a loop that copies nothing."""
    if "decode_kernel" not in name:
        return []
    most = 0
    for begin, end in loops(code):
        texts = [text for _, text in code[begin : end + 1]]
        first_sum = next((i for i, text in enumerate(texts) if "FFMA" in text), 0)
        if not any("LDGSTS" in text for text in texts):
            most = max(most, sum(re.search(r"\bLDG\b", text) is not None for text in texts[:first_sum]))
    return [] if most >= MERGE_READS else [f"{most} reads come before the first sum of a merge, not {MERGE_READS}"]


def generic_loads(name, code):
    """Finds reads by LD, such as a read of decode's page table through a pointer in shared memory."""
    if not any(kernel in name for kernel in READ_GLOBAL_MEMORY):
        return []
    num = sum(re.search(r"\bLD\b", text) is not None for _, text in code)
    return [f"{num} loads are LD, which are LDG where the compiler knows that the memory is global"] if num else []


def kind_of_access(text):
    """L: a load of 16 bytes, S: a store."""
    found = re.search(r"\b(LD|ST)G?\.E\S*\.128\b", text)
    return {"LD": "L", "ST": "S"}[found[1]] if found else ""


def problems_of(kernels):
    for name, code in kernels.items():
        found = early_accesses(code) + late_softmaxes(name, code) + late_copies(name, code) + slow_copies(name, code)
        found += serial_copies(name, code) + serial_merges(name, code) + generic_loads(name, code)
        for each in found:
            yield f"{name}: {each}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("objects", nargs="+")
    options = parser.parse_args()
    tool = find_tool()
    if tool is None:
        print("NOT RUN: there is no cuobjdump (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return NOT_RUN
    kernels = {}
    for path in options.objects:
        for name, code in disassemble(tool, path, options.arch).items():
            kernels[f"{pathlib.Path(path).name} {name}"] = code
    problems = list(problems_of(kernels))
    print("\n".join(problems) or f"{len(kernels)} kernels of {options.arch}: nothing found")
    return 1 if problems or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
