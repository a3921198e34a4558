"""Profiles of a step by nsys and ncu, where they are installed and permitted."""

import csv
import glob
import io
import os
import pathlib
import re
import shutil
import tempfile

from timed_call import call

NSYS_REPORTS = ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum")
ROWS_MAX = 25
NCU_KERNELS = 12
NCU_SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis", "WarpStateStats")
# Six of decode's one-warp blocks fit an SM, with 33.2 KiB each and 1 KiB for the system. For that, the driver must
# configure the SM's memory as shared memory and not as L1.
DECODE = re.compile(r"\bdecode_kernel<(\(int\))?128>")
DECODE_KB = 6 * (34 << 10) / 1000


def find(name):
    """The path of the profiler `name`, or None if it is not installed. Toolkits have them in nvcc's folder."""
    places = [shutil.which(name), *sorted(glob.glob(f"/usr/local/cuda*/bin/{name}"), reverse=True)]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def nsys(command, environment, out, timeout_s):
    """Records a timeline of `command`, and writes its sums per kernel to out/nsys.md. Returns (status, why, figures)."""
    program = find("nsys")
    if program is None:
        return "skipped", "nsys is not installed", {}
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "timeline"
        ended = call(
            [program, "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", "-o", record, *command],
            environment,
            timeout_s,
        )
        records = sorted(pathlib.Path(folder).glob("timeline*.nsys-rep"))
        if ended.code != 0 or not records:
            return "skipped", f"nsys does not work here: {ended.last_lines(2)}", {}
        text, figures = [], {}
        for report in NSYS_REPORTS:
            stats = call([program, "stats", "--report", report, "--format", "csv", records[0]], environment, 60)
            rows = csv_rows(stats.output)
            text += [f"## {report}", "", *as_table(rows[: ROWS_MAX + 1]), ""]
            figures[report] = max(0, len(rows) - 1)
    (out / "nsys.md").write_text("# What nsys saw\n\n" + "\n".join(text) + "\n")
    return ("passed" if any(figures.values()) else "skipped"), "nsys.md", figures


def csv_rows(text):
    """The table in the output of `nsys stats`: from the first line with commas to the end."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.count(",") > 3), len(lines))
    return [row for row in csv.reader(io.StringIO("\n".join(lines[begin:]))) if len(row) > 3]


def as_table(rows):
    if not rows:
        return ["nothing"]
    cells = [[cell.replace("|", "/") for cell in row] for row in rows]
    return [
        "| " + " | ".join(cells[0]) + " |",
        "|" + "---|" * len(cells[0]),
        *("| " + " | ".join(row) + " |" for row in cells[1:]),
    ]


def ncu(gpu_bench, environment, out, timeout_s):
    """Writes counters of some kernels of pitstop_gpu_bench to out/ncu.txt. Returns (status, why, figures)."""
    program = find("ncu")
    if program is None:
        return "skipped", "ncu is not installed", {}
    sections = [word for section in NCU_SECTIONS for word in ("--section", section)]
    # Leaves the clocks alone: steps do not run at the base clock, and a borrowed machine does not allow setting it.
    command = [program, "--clock-control", "none", *sections, "--launch-count", str(NCU_KERNELS), "--launch-skip", "40"]
    bench = [gpu_bench, "--family=decode", "--copy-gb-s=1", "--matrix-tflop-s=1"]
    ended = call([*command, *bench], environment, timeout_s)
    if "ERR_NVGPUCTRPERM" in ended.output:
        return "skipped", "this user may not read the GPU's counters", {}
    kernels = ended.output.count("Section: GPU Speed Of Light")
    if not kernels:
        return "skipped", f"ncu does not work here: {ended.last_lines(2)}", {}
    (out / "ncu.txt").write_text(ended.output)
    return "passed", "ncu.txt", {"kernels": kernels}


def decode_shares(text):
    """A fact for the report, from ncu's output: the shared memory of an SM while decode attention runs. None if that did
    not run, or if ncu's format differs."""
    found = []
    for kernel in re.split(r"\n(?=  \S)", text):
        size = re.search(r"Shared Memory Configuration Size\s+([KM]?)byte\s+([\d.,]+)", kernel)
        if size and DECODE.search(kernel.split("\n", 1)[0]):
            found.append(float(size[2].replace(",", "")) * {"": 1e-3, "K": 1, "M": 1e3}[size[1]])
    if not found:
        return None
    what = "decode attention: an SM shares memory for six blocks"
    return {"what": what, "ok": min(found) >= DECODE_KB, "kb": min(found), "needed_kb": round(DECODE_KB)}
