"""The steps of tests/gpu/first: one function each, which returns (status, why, figures for the report)."""

import dataclasses
import glob
import json
import os
import pathlib
import re
import sys
import tempfile
import typing

import first_model
import gtest_program
import parts
import profilers
import programs
import sizes
from lending import NoSender, Sender
from models import Models
from sanitizers import Sanitizers
from timed_call import call

EXCHANGES = "CudaExchange*"
# Marks the lines of a program's standard error, which are mixed into its standard output.
MARKED = r"""{ "$@" 2>&1 1>&3 | sed -u 's/^/! /'; exit ${PIPESTATUS[0]}; } 3>&1"""
SLOW_TO_REHEARSE = 12  # factor of time limits for a GPU in software on few cores
# The likeliest reason for a figure below its target. A key is the beginning or a part of the row's name.
HINTS = {
    "decode, 1 request": "finding the work, one tile a block, the merge by one warp (kernels/attention_decode.cu)",
    "decode": "latency of a tile's copies (kernels/attention_decode.cu)",
    "prefill, 64 tokens": "parts of a tile's keys and their merge (kernels/attention_prefill_wgmma.cu)",
    "prefill": "latency of the copying warpgroup; masks, prologue and tail (kernels/attention_prefill_wgmma.cu)",
    "M = 8": "one block per SM waits for its copies (kernels/device/linear_tile.cuh)",
    "M = 16": "one block per SM waits for its copies (kernels/device/linear_tile.cuh)",
    "M = 1100": "the algorithm was timed for 2048 rows (kernels/cublas_choices.h)",
}


class Run:
    """The state that steps share: the report, the models, the time budget of the running step."""

    def __init__(self, report, models):
        self.report = report
        self.budget = None
        self.models = Models(models, self.environment())
        self.of = sizes.REAL
        self.scale = 1.0
        self.keeper = None

    def take_sizes(self):
        self.of = sizes.of(self.report.device)
        if self.is_emulated():
            self.scale = SLOW_TO_REHEARSE

    def is_emulated(self):
        return sizes.is_emulated(self.report.device)

    def environment(self, **more):
        """Our environment, plus NVIDIA's libraries from Python's packages and one GPU queue per stream."""
        folders = [os.environ.get("LD_LIBRARY_PATH", ""), *nvidia_folders()]
        joined = {"LD_LIBRARY_PATH": ":".join(filter(None, folders)), "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
        return parts.environment(**joined, **more)

    def call(self, command, timeout_s=None, silence_s=None, **more):
        """Runs a program to its end within the step's time; its output goes to the log as it appears."""
        limit = self.budget.left() if timeout_s is None else min(timeout_s * self.scale, self.budget.left())
        return call(command, self.environment(**more), max(1.0, limit), silence_s, self.report.log)

    def model(self, shape):
        arguments, num_bytes = self.of.models[shape]
        return self.models.get(shape, arguments, num_bytes, self.budget)

    def limits(self):
        """{copy_gb_s, matrix_tflop_s, h2d_gb_s, d2h_gb_s} of this run; measured now if no step has done so."""
        if self.report.kernels is None:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "limits.json"
                self.call([programs.program("gpu_bench"), "--family=limits", f"--json={path}"], 30)
                found = json.loads(path.read_text())["limits"]
            self.report.kernels = {"limits": found, "kernels": []}
        return self.report.kernels["limits"]

    def end(self):
        self.models.remove()
        if self.keeper is not None:
            self.keeper.__exit__()


def nvidia_folders():
    """The folders of pip's cuBLASLt and NCCL, for this Python and for the virtual environments under /opt."""
    places = [*sys.path, *glob.glob("/opt/*/.venv/lib/python3*/site-packages")]
    return sorted({each for place in places if place for each in glob.glob(f"{glob.escape(place)}/nvidia/*/lib")})


def ended(done, figures=None):
    """The result of a step that is one program."""
    status = "passed" if done.code == 0 else "failed"
    return status, "" if done.code == 0 else done.last_lines(), figures or {}


def facts(run):
    """Records the machine, the GPU and the libraries: the first place to look if a later step fails."""
    for command in (
        "uname -a; nproc; free -g; df -h / /tmp /dev/shm; ulimit -a; id -u; command -v python3; python3 --version",
        "nvidia-smi; nvidia-smi -q -d CLOCK,POWER,MEMORY,COMPUTE; ls -d /usr/local/cuda* /opt/*/.venv; ip -brief addr",
    ):
        run.call(["bash", "-c", command], 15)
    run.report.log.write(f"NVIDIA's libraries: {nvidia_folders()}\n")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "device.json"
        done = run.call([programs.program("gpu_bench"), "--device-only", f"--json={path}"], 20)
        found = json.loads(path.read_text()) if path.exists() else {"status": "", "why": done.last_lines()}
    if done.code != 0 or found["status"] != "run":
        run.report.why_not = found["why"] or done.last_lines()
        return "failed", run.report.why_not, {}
    run.report.device = {**found["device"], **parts.driver_facts(run.budget)}
    client = run.call(
        [sys.executable, "-c", "import numpy, pitstop, zmq; print(zmq.__version__, zmq.zmq_version())"],
        10,
        PYTHONPATH=str(parts.ROOT / "client" / "python"),
    )
    run.report.machine = {
        "python": sys.version.split()[0],
        "pyzmq": client.last_lines(1),
        "cores": os.cpu_count(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
    }
    return ("passed", "", {}) if client.code == 0 else ("failed", f"the client: {client.last_lines()}", {})


def keep_context(run):
    """Starts a process that keeps the GPU open until the end: without it each start takes seconds longer."""
    try:
        run.keeper = Sender(run.environment()).__enter__()
    except NoSender as error:
        return "failed", str(error), {}
    memory = run.keeper.ask("memory")
    return "passed", "", {"free_gb": round(memory["free_bytes"] / 1e9, 1)}


def probe(run):
    """Asks the driver the probe's questions, each in a process of its own."""
    program = programs.program("gpu_probe")
    questions = run.call([program, "--list"], 10).output.split()
    troubles = []
    for question in questions:
        done = run.call([program, f"--ask={question}"], 15)
        found = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
        known = {fact["what"] for fact in found}
        run.report.facts = [fact for fact in run.report.facts if fact["what"] not in known] + found
        if done.code != 0:
            troubles.append(f"{question}: {done.last_lines(3)}")
        troubles += [f"{fact['what']}: not as relied on" for fact in found if not fact["ok"]]
    return ("failed" if troubles else "passed"), " / ".join(troubles), {"questions": len(questions)}


def generate(run):
    """Generates with the bundled model in a whole tree: on the CPU, and on the GPU with graphs and without."""
    texts = {}
    for way, flags in {
        "cpu": ["--device=cpu"],
        "with graphs": ["--device=cuda", "--log-level=info"],
        "without": ["--device=cuda", "--no-graphs"],
    }.items():
        command = [parts.ROOT / "launch" / "pitstop", "generate", "Once upon a time", "--model=stories", *flags]
        command += ["--temperature=0", f"--max-new-tokens={run.of.text_tokens}", *run.of.untuned]
        texts[way] = run.call(["bash", "-c", MARKED, "generate", *command], 25)
    failed = [f"{way}: {done.last_lines()}" for way, done in texts.items() if done.code != 0]
    said = {way: printed(done) for way, done in texts.items() if done.code == 0}
    alike = {way: len(os.path.commonprefix([said.get("cpu", ""), text])) for way, text in said.items()}
    if not failed and min(alike.values()) < 8:
        failed.append(f"other texts: {said}")
    return ("failed" if failed else "passed"), " / ".join(failed), {"characters as the CPU's": alike}


def printed(done):
    """The program's standard output. A marked line of standard error may interrupt one of its lines."""
    text = re.sub(r"! [^\n]*(\n|$)", "", done.output)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("#", "$"))).strip()


def tests(program, which, silence_s=20.0):
    """A step that runs a test program's tests in one process; the log has all of its output."""

    def go(run):
        small = {"PITSTOP_SMALL_SHAPES": "1"} if run.is_emulated() else {}
        counts = gtest_program.run_in_one(
            programs.bin_dir() / program,
            run.environment(PITSTOP_REQUIRE_GPU="1", **small),
            which,
            run.budget,
            run.budget.left() - 2,
            silence_s * run.scale,
            run.report.log,
        )
        why = [*counts.failed, *([f"not run: {len(counts.not_run)}"] if counts.not_run else [])]
        is_failed = counts.failed or not counts.passed
        return ("failed" if is_failed else "skipped" if counts.not_run else "passed"), " / ".join(why), counts.figures()

    return go


def limits_and_decode(run):
    """Measures the GPU's peak copy and matrix rates, then families of kernels, decode first."""
    found = run.limits()
    families = ("decode", "prefill", "linear") if run.budget.left() > 20 else ("decode",)
    troubles = []
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.json"
            command = [programs.program("gpu_bench"), f"--family={family}", f"--json={path}", *parts.limit_flags(found)]
            done = run.call(command)
            rows = json.loads(path.read_text()).get("kernels", []) if path.exists() else []
        before = [
            row for row in run.report.kernels["kernels"] if row["family"] not in {each["family"] for each in rows}
        ]
        run.report.kernels["kernels"] = before + rows if family != "prefill" else run.report.kernels["kernels"] + rows
        run.report.kernel_figures(rows, HINTS)
        if done.code != 0:
            troubles.append(f"{family}: {done.last_lines()}")
    return ("failed" if troubles else "passed"), " / ".join(troubles), dict(found)


def sanitizer(run):
    """Runs memcheck on attention's tests at small shapes, the likeliest to show an error."""
    tool = "memcheck"
    check = [programs.program("gpu_bench"), "--device-only"]
    program = programs.bin_dir() / "kernels_gpu_test"
    found = Sanitizers(program, check, run.environment(), run.budget, ("*Attention*-*DeathTest*",), (tool,))
    status, why, figures = found.run(tool)
    return status, why, {"under_the_tool_s": figures["seconds"]} if figures else {}


def gaps(run):
    """The time of a decode step per kernel: in a graph, alone, and the minimum for its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "gaps.json"
        command = [programs.program("gpu_bench"), "--gaps", f"--json={path}", *parts.limit_flags(run.limits())]
        done = run.call(command)
        found = json.loads(path.read_text()).get("gaps") if path.exists() else None
    if done.code != 0 or not found:
        return "failed", done.last_lines(), {}
    run.report.gaps = found
    return "passed", "", {step["step"]: f"{step['least_us'] / step['early_us']:.0%}" for step in found}


def counters(run):
    if run.is_emulated():
        return "skipped", "there are no counters in software", {}
    program = programs.program("gpu_bench")
    out = run.report.out
    status, why, figures = profilers.ncu(program, run.environment(), out, max(1.0, run.budget.left() - 2))
    fact = profilers.decode_shares((out / "ncu.txt").read_text()) if status == "passed" else None
    if fact is not None:
        run.report.facts = [each for each in run.report.facts if each["what"] != fact["what"]] + [fact]
    return status, why, figures


def pytorch(run):
    """Checks the features that the client uses of PyTorch against the installed version."""
    script = pathlib.Path(__file__).resolve().parent / "first_torch.py"
    python = next((each for each in (sys.executable, "python3") if has_torch(run, each)), None)
    if python is None:
        return "skipped", "no python3 here has PyTorch", {}
    path = {"PYTHONPATH": str(parts.ROOT / "client" / "python")}
    return ended(run.call([python, script], **path))


def has_torch(run, python):
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return run.call([python, "-c", ask], 10).code == 0


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    limit_s: int
    go: typing.Callable


KERNEL_TESTS = f"-{EXCHANGES}:*DeathTest*"
ENGINE_TESTS = "-*KvTakes*:*DeathTest*"
STEPS = (
    Step("facts", 40, facts),
    Step("a context that stays", 15, keep_context),
    Step("probe", 60, probe),
    Step("generate", 50, generate),
    Step("kernel tests", 120, tests("kernels_gpu_test", KERNEL_TESTS)),
    Step("engine tests", 70, tests("tp_worker_gpu_test", ENGINE_TESTS)),
    Step("limits and decode", 60, limits_and_decode),
    Step("a step by its kernels", 30, gaps),
    Step("updates of 0.6B beside streams", 60, first_model.updates_beside_streams),
    Step("8B: decode, prefill, memory", 120, first_model.large_model),
    Step("8B: updates", 60, first_model.update_large),
    Step("compute-sanitizer", 45, sanitizer),
    Step("exchange tests", 30, tests("kernels_gpu_test", f"{EXCHANGES}-*DeathTest*", silence_s=10.0)),
    Step("ncu", 45, counters),
    Step("PyTorch", 35, pytorch),
)
# Quick, and needed by the other steps: run in every call.
FIRST_OF_ALL = tuple(step.name for step in STEPS[:2])
