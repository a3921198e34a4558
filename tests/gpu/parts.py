"""The parts of tests/gpu/run: a function per line of its report."""

import json
import os
import pathlib
import tempfile
import time

import gtest_program
import peers
import profilers
import programs
import sizes
import updates
from models import NoModel
from sanitizers import Sanitizers
from timed_call import call

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAMILY_S = 60.0  # limit of one family's kernel benchmarks
BENCH_S = 120.0  # limit of one benchmark of a tree
GAPS_S = 120.0
NSYS_S = 150.0
NCU_S = 150.0
NO_TIME = "no time left"


def environment(**more):
    return {
        **os.environ,
        "PITSTOP_SOURCE_DIR": str(ROOT),
        "PITSTOP_BUILD": str(programs.bin_dir().parent),
        **more,
    }


def run(command, budget, timeout_s):
    return call(command, environment(), max(1.0, min(timeout_s, budget.left())))


def find_gpu(report, budget):
    """Fills report.device, or report.why_not."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "device.json"
        ended = run([programs.program("gpu_bench"), "--device-only", f"--json={path}"], budget, 60)
        if ended.code != 0 or not path.exists():
            # A hanging driver or a failed call must not prevent a report.
            report.why_not = f"pitstop_gpu_bench: {ended.last_lines()}"
            report.take_earlier()
            report.add("the GPU", "failed", report.why_not)
            return
        found = json.loads(path.read_text())
    if found["status"] == "run":
        report.device = {**found["device"], **driver_facts(budget)}
    else:
        report.why_not = found["why"]


def driver_facts(budget):
    """Figures of nvidia-smi: clocks and limits that explain other figures."""
    names = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,ecc.mode.current,mig.mode.current"
    ended = run(["nvidia-smi", "-i", "0", f"--query-gpu={names}", "--format=csv,noheader"], budget, 30)
    values = [value.strip() for value in ended.output.strip().split(",")]
    return dict(zip(names.split(","), values)) if ended.code == 0 else {}


def run_tests(report, name, program, budget):
    begin = time.monotonic()
    path = programs.bin_dir() / program
    if not path.exists():
        report.add(name, "failed", f"{path} is not there")
        return
    # The GPU exists, so a test that cannot use it has failed.
    small = {"PITSTOP_SMALL_SHAPES": "1"} if sizes.is_emulated(report.device) else {}
    of = sizes.of(report.device)
    counts = gtest_program.run(path, environment(PITSTOP_REQUIRE_GPU="1", **small), budget, of.tests_s, of.test_s)
    report.errors.update(counts.suites)
    why = " / ".join(counts.failed)
    if counts.not_run:
        why = " / ".join([*counts.failed, f"not run: {', '.join(counts.not_run)}"])
    if counts.passed == 0 and not counts.failed:
        why = " / ".join(filter(None, [why, "no test ran"]))
    status = "failed" if counts.failed else "skipped" if counts.not_run or not counts.passed else "passed"
    report.add(name, status, why, seconds=round(time.monotonic() - begin, 1), **counts.figures())


def run_limits(report, name, budget):
    """The highest rates at which this GPU copies and multiplies: every other figure is compared
    with them.
    """
    measured, ended = bench_family(programs.program("gpu_bench"), "limits", None, budget)
    if ended.code != 0 or measured is None or "limits" not in measured:
        report.add(name, "failed", ended.last_lines())
        return
    report.kernels = {"limits": measured["limits"], "kernels": []}
    report.add(name, "passed", **measured["limits"])


def run_kernel_bench(report, name, budget):
    """Runs each family in a process of its own. If there are no limits yet, the first family's process measures them."""
    program = programs.program("gpu_bench")
    listed = run([program, "--list"], budget, 30)
    if listed.code != 0:
        report.add(name, "failed", listed.last_lines())
        return
    troubles = []
    if report.kernels:
        report.kernels["kernels"] = []
    for family in [*([] if report.kernels else ["limits"]), *listed.output.split()]:
        if budget.left() < 5:
            troubles.append(f"{family}: {NO_TIME}")
            continue
        measured, ended = bench_family(program, family, report.kernels, budget)
        if ended.code != 0:
            troubles.append(f"{family}: {ended.last_lines(2)}")
        if measured is None or "limits" not in measured:
            if report.kernels is None:
                break  # without limits the other families have no share to report
            continue
        if report.kernels is None:
            report.kernels = {"limits": measured["limits"], "kernels": []}
        report.kernels["kernels"] += measured["kernels"]
        report.write()
    held = [row for row in report.kernels["kernels"] if row["met"] is not None] if report.kernels else []
    met = sum(1 for row in held if row["met"])
    counted = f"{met} of {len(held)} figures at their target"
    report.add(name, "failed" if troubles else "passed", " / ".join([*troubles, counted]))


def bench_family(program, family, kernels, budget):
    """Returns the family's measurements so far, and how the program ended."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernels.json"
        command = [program, f"--family={family}", f"--json={path}"]
        if kernels is not None:
            command += limit_flags(kernels["limits"])
        ended = run(command, budget, FAMILY_S)
        print(ended.output, end="", flush=True)
        return (json.loads(path.read_text()) if path.exists() else None), ended


def limit_flags(limits):
    """Flags that pass earlier limits on, so that they are not measured again."""
    if not limits:
        return []
    return [f"--copy-gb-s={limits['copy_gb_s']}", f"--matrix-tflop-s={limits['matrix_tflop_s']}"]


def sanitizers(budget):
    probe = [programs.program("gpu_bench"), "--device-only"]
    return Sanitizers(programs.bin_dir() / "kernels_gpu_test", probe, environment(), budget)


def run_sanitizer(report, name, tool, over_kernels):
    """One of compute-sanitizer's tools over all kernels at small shapes."""
    status, why, figures = over_kernels.run(tool)
    report.add(name, status, why, **figures)


def run_bundled_models(report, name, budget):
    """Text of the bundled model through the whole tree, on the GPU and on the CPU. The ids may
    differ where two are nearly equally likely; tp_worker_gpu_test compares ids that may not.
    """
    texts = {}
    for device in ("cpu", "cuda"):
        command = [
            ROOT / "launch" / "pitstop",
            "generate",
            "Once upon a time",
            "--model=stories",
            f"--device={device}",
            "--temperature=0",
            f"--max-new-tokens={sizes.of(report.device).text_tokens}",
            "--tuning-dir=none",
            *sizes.of(report.device).tree,
        ]
        ended = run(command, budget, 60)
        if ended.code != 0:
            report.add(name, "failed", f"on {device}: {ended.last_lines()}")
            return
        texts[device] = ended.output.strip()
    same = os.path.commonprefix([texts["cpu"], texts["cuda"]])
    is_same = texts["cpu"] == texts["cuda"]
    report.add(name, "passed", "the CPU's text" if is_same else f"the CPU's text for {len(same)} characters")


def model_of(report, shape, models, budget):
    """Returns the model's directory, which is made if needed. NoModel: the reason why not."""
    arguments, num_bytes = sizes.of(report.device).models[shape]
    return models.get(shape, arguments, num_bytes, budget)


def run_with_model(report, name, shape, models, budget, run_with):
    """run_with(model) returns (status, why, figures)."""
    begin = time.monotonic()
    try:
        status, why, figures = run_with(model_of(report, shape, models, budget))
    except NoModel as error:
        status, why, figures = "failed" if error.is_failure else "skipped", str(error), {}
    report.add(name, status, why, **figures, seconds=round(time.monotonic() - begin, 1))


def run_shape(report, name, shape, models, budget):
    """A model of this shape with random weights, served on the GPU: decode of one request and of
    64, and prefill."""
    run_with_model(report, name, shape, models, budget, lambda model: bench_shape(report, model, budget))


def bench_shape(report, model, budget):
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for what, arguments in sizes.of(report.device).benches.items():
            if budget.left() < 20:
                return "skipped", f"{what} and after: {NO_TIME}", figures
            path = pathlib.Path(folder) / f"{what}.json"
            ended = run(bench_command(report, model, arguments, path), budget, BENCH_S)
            if ended.code == 0:
                figures[what] = summary(json.loads(path.read_text()))
            if ended.code != 0:
                return "failed", f"{what}: {ended.last_lines()}", figures
    return "passed", "", figures


def run_updates(report, name, shape, models, budget):
    run_beside_limits(report, name, shape, models, budget, updates.of_this_machine)


def run_host_updates(report, name, shape, models, budget):
    run_beside_limits(report, name, shape, models, budget, updates.by_host_memory)


def run_beside_limits(report, name, shape, models, budget, measure):
    """Runs measure(model, sizes, limits, environment, budget). Limits that do not exist yet are measured first."""
    if report.kernels is None:
        run_limits(report, "limits", budget)
    limits = (report.kernels or {}).get("limits")
    of = sizes.of(report.device)

    def run_with(model):
        return measure(model, of, limits, environment(), budget)

    run_with_model(report, name, shape, models, budget, run_with)


def run_broadcasts(report, name, shape, models, budget):
    def measure(model):
        return updates.by_nccl(model, sizes.of(report.device), environment(), budget)

    run_with_model(report, name, shape, models, budget, measure)


def run_peers(report, name, shape, models, budget):
    """PyTorch's kernels and transformers' generation, if the machine has them."""
    device = "cpu" if sizes.is_emulated(report.device) else "cuda"
    python, why = peers.find(environment(), device)
    if python is None:
        report.add(name, "skipped", why)
        return

    def measure(model):
        of = sizes.of(report.device).peers
        report.peers, ended = peers.measure(of, device, model, environment(), max(1.0, budget.left()))
        if report.peers is None:
            return "failed", ended.last_lines(), {}
        cut = "" if ended.code == 0 else f"cut off: {ended.last_lines(2)}"
        num = sum("us" in row for row in report.peers["rows"])
        return ("passed" if num else "failed"), cut if num else cut or "nothing was measured", {"rows": num}

    run_with_model(report, name, shape, models, budget, measure)


def run_gaps(report, name, budget):
    """The time between the kernels of a decode step, by the device's clock."""
    limits = (report.kernels or {}).get("limits")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "gaps.json"
        command = [programs.program("gpu_bench"), "--gaps", f"--json={path}", *limit_flags(limits)]
        ended = run(command, budget, GAPS_S)
        print(ended.output, end="", flush=True)
        found = json.loads(path.read_text()).get("gaps") if path.exists() else None
    if ended.code != 0 or not found:
        report.add(name, "failed", ended.last_lines())
        return
    report.gaps = found
    lost = {f"{step['step']}": f"{1 - step['alone_us'] / step['step_us']:.0%} lost" for step in found}
    report.add(name, "passed", "", **lost)


def run_nsys(report, name, shape, models, budget):
    """A timeline of one request's decode through a whole tree."""
    if profilers.find("nsys") is None or sizes.is_emulated(report.device):
        why = "nsys sees nothing in software" if sizes.is_emulated(report.device) else "nsys is not installed"
        report.add(name, "skipped", why)
        return

    def measure(model):
        command = bench_command(report, model, sizes.of(report.device).benches["decode_1"], None)
        return profilers.nsys(command, environment(), report.out, max(1.0, min(NSYS_S, budget.left())))

    run_with_model(report, name, shape, models, budget, measure)


def run_ncu(report, name, budget):
    if sizes.is_emulated(report.device):
        report.add(name, "skipped", "there are no counters in software")
        return
    status, why, figures = profilers.ncu(
        programs.program("gpu_bench"), environment(), report.out, max(1.0, min(NCU_S, budget.left()))
    )
    report.add(name, status, why, **figures)


def bench_command(report, model, arguments, path):
    return [
        programs.program("bench"),
        *arguments,
        "--warmup=1",
        f"--model={model}",
        f"--launcher={ROOT / 'launch' / 'pitstop'}",
        *([f"--json={path}"] if path else []),
        "--",
        "--device=cuda",
        *sizes.of(report.device).tree,
    ]


def summary(found):
    """Returns the rates of a bench report, and the inputs of its targets."""
    rates = {"weight_bytes_per_step": found.get("model", {}).get("weight_bytes_per_step", 0)}

    def look(value, path):
        if isinstance(value, dict):
            for key, inner in value.items():
                look(inner, [*path, key])
        elif isinstance(value, (int, float)) and "per_s" in path[-1]:
            rates[".".join(path)] = round(value, 1)

    look(found["figures"], [])
    rates["ready_s"] = found.get("start_up", {}).get("ready_s")
    return rates
