#!/usr/bin/env python3
"""The compiler's resources for each CUDA kernel, and how many warps of an SM that leaves: the table
in kernels/KERNELS.md is this program's output.

    kernel_resources.py --nvcc=NVCC -- FLAGS...           fails where the table says something else
    kernel_resources.py --nvcc=NVCC --write -- FLAGS...   writes the table

FLAGS are the compiler's. Also fails where a kernel

* spills, or has none of its instances in the table;
* has an atomic of 64 bits on shared memory, which is a loop of compare-and-swap there;
* touches memory in its PTX before it waits for the previous kernel (kernels/device/dependent_launch.cuh).
  machine_code.py finds the accesses that ptxas moves before the wait.
"""

import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "kernels"
DOCUMENT = KERNELS / "KERNELS.md"
HEAD = [
    "| kernel | what | threads | registers | shared memory | warps per SM, bound by |",
    "|---|---|---|---|---|---|",
]

# An SM of compute capability 9.0. Source: CUDA C++ Programming Guide, "Compute Capabilities".
WARPS_MAX, BLOCKS_MAX = 64, 32
REGISTERS_PER_QUARTER = 16384  # four schedulers, each with its own
SHARED_BYTES = 228 << 10
SHARED_BYTES_OF_BLOCK = 1 << 10  # taken by the system per block

# Kernel as the compiler names it, description, threads, dynamic shared memory in bytes.
SHOWN = (
    ("embedding.cu: embedding_kernel<true>", "rows aligned", 256, 0),
    ("rmsnorm.cu: rmsnorm_kernel<bf16, 4>", "H <= 4096, held in registers", 256, 0),
    ("rmsnorm.cu: rmsnorm_kernel<bf16, 8>", "H <= 8192, held in registers", 256, 0),
    ("rope.cu: rope_kernel<bf16, 128>", "", 256, 0),
    ("silu_mul.cu: silu_mul_kernel<bf16, bf16, true>", "rows aligned", 256, 0),
    ("gate_heads.cu: gate_heads_kernel<bf16, bf16, true>", "rows aligned", 256, 0),
    ("gated_delta.cu: recur_kernel<bf16, bf16, 4>", "dk <= 128", 128, 0),
    ("gated_delta.cu: recur_kernel<bf16, bf16, 8>", "dk <= 256", 128, 0),
    ("gated_delta.cu: norm_kernel<bf16, bf16>", "", 128, 0),
    ("gated_delta.cu: keep_inputs_kernel<bf16>", "", 128, 0),
    ("router.cu: route_kernel<4>", "E <= 128", 128, 0),
    ("router.cu: route_kernel<32>", "E <= 1024", 128, 0),
    ("router.cu: follow_routes_kernel", "", 128, 0),
    ("expert_rows.cu: sort_rows_kernel", "", 256, 0),
    ("expert_rows.cu: sum_rows_kernel", "", 256, 0),
    ("route_rows.cu: route_rows_kernel", "", 128, 0),
    ("route_rows.cu: count_choices_kernel", "", 128, 0),
    ("route_rows.cu: copy_counts_kernel", "", 128, 0),
    ("digest.cu: digest_kernel<true>", "rows aligned", 256, 0),
    ("shard_copy.cu: shard_copy_kernel", "", 256, 0),
    ("scatter.cu: scatter_kernel", "", 256, 0),
    ("step_rows.cu: step_rows_kernel", "", 512, 0),
    ("word_runs.cu: word_runs_kernel", "", 256, 0),
    ("low_rank_rows.cu: shrink_kernel<bf16, true>", "A x, rows aligned", 128, 0),
    ("low_rank_rows.cu: expand_kernel<float>", "B h, added to fp32", 128, 0),
    ("expert_tables.cu: expert_tables_kernel", "", 256, 0),
    ("gather_rows.cu: gather_rows_kernel<uint4>", "rows aligned", 128, 0),
    ("nonfinite.cu: count_nonfinite_kernel<true>", "rows aligned", 256, 0),
    ("penalties.cu: penalties_kernel", "", 128, 0),
    ("draws.cu: note_draws_kernel", "", 128, 0),
    ("rank_records.cu: make_rank_records_kernel", "", 128, 0),
    ("rank_records.cu: merge_rank_records_kernel", "", 128, 0),
    ("sampling.cu: race_or_max_kernel", "", 256, 0),
    ("sampling.cu: histogram_kernel", "", 256, 0),
    ("sampling.cu: collect_kernel", "", 256, 0),
    ("sampling.cu: resolve_kernel", "", 1024, 0),
    ("logprobs.cu: softmax_part_kernel<true>", "rows aligned", 256, 0),
    ("logprobs.cu: softmax_merge_kernel", "", 128, 0),
    ("logprobs.cu: pick_logits_kernel", "", 256, 0),
    ("logprobs.cu: count_before_kernel", "", 1024, 0),
    ("logprobs.cu: top_logits_kernel", "", 1024, 0),
    ("attention_decode.cu: decode_kernel<128>", "persistent", 32, 32 << 10),
    ("attention_decode.cu: decode_kernel<64>", "persistent", 32, 16 << 10),
    ("attention_prefill.cu: prefill_kernel<Shape<128, 2, 1, false>>", "free order", 128, 64 << 10),
    ("attention_prefill.cu: prefill_kernel<Shape<128, 1, 2, true>>", "fixed order", 128, 48 << 10),
    ("attention_prefill.cu: prefill_kernel<Shape<64, 2, 2, false>>", "free order", 128, 32 << 10),
    ("attention_prefill.cu: prefill_kernel<Shape<64, 1, 3, true>>", "fixed order", 128, 24 << 10),
    ("attention_prefill_wgmma.cu: prefill_wgmma_kernel<128>", "then 40 and 232 registers", 384, 160 << 10),
    ("attention_prefill_wgmma.cu: prefill_wgmma_kernel<64>", "then 40 and 232 registers", 384, 80 << 10),
    ("exchange.cu: one_shot_kernel", "sum over the ranks", 512, 0),
    ("exchange.cu: two_shot_kernel", "the same, large", 512, 0),
    ("exchange.cu: gather_columns_kernel", "", 512, 0),
    ("exchange.cu: all_gather_kernel", "", 512, 0),
    ("attention_general.cu: general_kernel", "attention, any shape", 128, 0),
    ("linear_gemv.cu: gemv_kernel<1, false>", "M = 1", 256, 0),
    ("linear_gemv.cu: gemv_kernel<2, false>", "M = 2", 256, 0),
    ("linear_gemv.cu: gemv_kernel<4, false>", "M = 4", 256, 0),
    ("linear_gemv.cu: gemv_kernel<1, true>", "M = 1, gate and up with silu_mul", 256, 0),
    ("linear_gemv.cu: gemv_kernel<4, true>", "M = 4, likewise", 256, 0),
    ("linear.cu: tile_kernel<TileShape<16, 32, 1, 4, 12, 3>>", "M <= 16", 128, 72 << 10),
    ("linear.cu: split_kernel", "M <= 16, few weight rows", 128, 72 << 10),
    ("linear.cu: tile_kernel<TileShape<64, 64, 1, 4, 5, 2>>", "M <= 64", 128, 80 << 10),
    ("linear.cu: tile_kernel<TileShape<128, 128, 2, 4, 3, 2>>", "larger M", 256, 96 << 10),
    ("linear.cu: general_kernel", "linear, fp32", 256, 0),
    ("linear.cu: add_bias_kernel", "", 256, 0),
    ("expert_linear.cu: expert_rows_kernel", "few rows", 256, 0),
    ("expert_linear.cu: expert_tile_kernel<TileShape<16, 32, 1, 4, 12, 3>>", "some 16 rows an expert", 128, 72 << 10),
    ("expert_linear.cu: expert_tile_kernel<TileShape<64, 64, 1, 4, 5, 2>>", "some 64 rows an expert", 128, 80 << 10),
    ("expert_linear.cu: expert_tile_kernel<TileShape<128, 128, 2, 4, 3, 2>>", "more", 256, 96 << 10),
    ("expert_linear.cu: expert_general_kernel", "fp32", 256, 0),
    ("expert_linear_wgmma.cu: expert_wgmma_kernel", "over 64 rows an expert, on Hopper", 256, 192 << 10),
)


# PTX instructions that may read or write another kernel's memory. Parameters and shared memory are
# the kernel's own.
TOUCHES_MEMORY = re.compile(r"\b(ld|ldu|st|atom|red|cp\.async)\.(?!param\b|shared\b|local\b|const\b)\S+")


def early_accesses(assembly):
    """The kernels of this PTX that touch memory before they wait, or that let the next kernel start
    without waiting.
    """
    problems = []
    for name, body in re.findall(r"\.entry (\w+)\((.*?)^}", assembly, re.DOTALL | re.MULTILINE):
        before, wait, _ = body.partition("griddepcontrol.wait")
        if not wait:
            if "griddepcontrol" in body:
                problems.append(f"{plain_name(name)} lets the next kernel start and does not wait")
        elif touched := TOUCHES_MEMORY.search(before):
            problems.append(f"{plain_name(name)} has {touched[0]} before it waits")
    return problems


def compile_one(source, nvcc, flags, folder):
    """{kernel: (registers, static shared bytes, spilled bytes)} of one source file."""
    command = [nvcc, *flags, "-x", "cu", "-arch=sm_90a", "-cubin", "-Xptxas=-v"]
    kept = folder / source.stem
    kept.mkdir()
    command += [str(source), "-o", str(kept / f"{source.stem}.cubin"), "--keep", "--keep-dir", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{source.name}: {done.stderr}")
    (assembly,) = kept.glob("*.ptx")
    if atomic := re.search(r"(atom|red)\.shared\.\S*64", assembly.read_text()):
        sys.exit(f"{source.name}: {atomic[0]}")
    if early := early_accesses(assembly.read_text()):
        sys.exit("\n".join(f"{source.name}: {each}" for each in early))
    found = {}
    name = None
    for line in done.stderr.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name = f"{source.name}: {plain_name(entry[1])}"
        elif spills := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(spills[1]) + int(spills[2])
        elif used := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found[name] = (int(used[1]), int(shared[1]) if shared else 0, spilled)
        elif "wgmma" in line and re.search(r"C75\d\d|serializ", line):
            sys.exit(f"{source.name}: {line}")  # ptxas has serialized the kernel's products
    return found


def plain_name(mangled):
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    for noise in ("void ", "pitstop::kernels::", "pitstop::", "(anonymous namespace)::"):
        name = name.replace(noise, "")
    name = name.replace("> >", ">>")
    depth = 0
    for i, char in enumerate(name):  # the parameters begin at the first bracket outside of <>
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0:
            return name[:i]
    return name


def warps_of_sm(threads, registers, shared):
    """(warps, their limiting resource)."""
    warps = threads // 32
    registers_of_warp = (registers + 7) // 8 * 8 * 32
    blocks = {
        "registers": REGISTERS_PER_QUARTER // registers_of_warp * 4 // warps,
        "shared memory": SHARED_BYTES // ((shared + SHARED_BYTES_OF_BLOCK + 127) // 128 * 128),
        "": min(WARPS_MAX // warps, BLOCKS_MAX),
    }
    bound = min(reversed(blocks), key=lambda name: blocks[name])
    return blocks[bound] * warps, bound


def memory(num_bytes):
    if num_bytes == 0:
        return "-"
    return f"{num_bytes} B" if num_bytes < 1024 else f"{num_bytes / 1024:.3g} KiB"


def table(found):
    lines = list(HEAD)
    for name, what, threads, dynamic in SHOWN:
        if name not in found:
            sys.exit(f"there is no kernel {name}; the compiler has {', '.join(sorted(found))}")
        registers, static, _ = found[name]
        warps, bound = warps_of_sm(threads, registers, static + dynamic)
        plain = name.split(": ")[1]
        lines.append(
            f"| `{plain}` | {what} | {threads} | {registers} | {memory(static + dynamic)} "
            f"| {', '.join(filter(None, [str(warps), bound]))} |"
        )
    return lines


def documented(lines):
    """(begin, end) of the table in the document's lines."""
    if HEAD[0] not in lines:
        sys.exit(f"{DOCUMENT.name} has no table that begins with {HEAD[0]}")
    begin = end = lines.index(HEAD[0])
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return begin, end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(compile_one, source, options.nvcc, options.flags, pathlib.Path(folder))
            for source in sorted(KERNELS.glob("*.cu"))
        ]
        for job in jobs:
            found.update(job.result())
    problems = [f"{name} spills {spilled} bytes" for name, (_, _, spilled) in found.items() if spilled > 0]
    shown = {name.split("<")[0] for name, *_ in SHOWN}
    unshown = {name.split("<")[0] for name in found} - shown - {"rope.cu: rope_general_kernel"}
    problems += [f"{name} is not in the table" for name in sorted(unshown)]

    lines = DOCUMENT.read_text().splitlines()
    begin, end = documented(lines)
    now = table(found)
    if options.write:
        DOCUMENT.write_text("\n".join([*lines[:begin], *now, *lines[end:]]) + "\n")
    elif lines[begin:end] != now:
        differing = [line for line in now if line not in lines[begin:end]]
        problems += [f"{DOCUMENT.name} should say: {line}" for line in differing or ["its lines in another order"]]
    print(
        "\n".join(problems)
        if problems
        else f"{len(found)} kernels, none spills; {DOCUMENT.name} has what the compiler says"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
