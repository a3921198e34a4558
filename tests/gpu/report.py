"""The results of tests/gpu/run, written anew after each part: an interruption loses nothing."""

import json
import pathlib
import subprocess
import time

import peers
import targets

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKED_BYTES = 1 << 20  # more than a report can have
OP_TIMES = ("least_us", "alone_us", "in_step_us", "in_graph_us")
BUS = {"from the host": "h2d_gb_s", "to it": "d2h_gb_s"}  # direction: name of its limit


class Report:
    """parts: {name: {"status": passed|failed|skipped, "why", figures ...}}, in order."""

    def __init__(self, out):
        self.out = out
        self.why_not = None  # the reason if nothing can run
        self.device = None
        self.parts = {}
        self.errors = {}  # {suite: {worst_error, worst_error_over_bound}}
        self.kernels = None  # {"limits", "kernels"} of pitstop_gpu_bench
        self.peers = None  # what peers_torch.py found
        self.gaps = None  # the results of pitstop_gpu_bench --gaps
        self.times = {}  # {part of the run: seconds}
        self._commit = commit()

    def check_place(self):
        """OSError if the report cannot be written. Existing results are kept."""
        self.out.mkdir(parents=True, exist_ok=True)
        draft = self.out / ".report.json"
        draft.write_text("\n" * CHECKED_BYTES)
        draft.unlink()

    def add(self, name, status, why="", **figures):
        self.parts[name] = {"status": status, "why": why, **figures}
        print(f"{status:8} {name}{': ' + why if why else ''}", flush=True)
        self.write()

    def add_time(self, part, seconds):
        self.times[part] = round(seconds, 1)
        self.write()

    def take_earlier(self):
        """Takes over the results of an earlier call in this directory, if it was of the same commit on the same GPU.
        Without a GPU these results are set aside for the next call that has one."""
        if self.device is None:
            self._put_earlier_aside()
            return
        for name in ("report", "earlier"):
            if self._take(_found_in(self.out / f"{name}.json")):
                return

    def _put_earlier_aside(self):
        if _found_in(self.out / "report.json").get("status") != "run":
            return
        for suffix in ("md", "json"):
            if (self.out / f"report.{suffix}").exists():
                (self.out / f"report.{suffix}").replace(self.out / f"earlier.{suffix}")

    def _take(self, found):
        device = found.get("device") or {}
        is_same = [found.get("commit"), device.get("name"), device.get("uuid")] == [
            self._commit,
            self.device.get("name"),
            self.device.get("uuid"),
        ]
        if is_same:
            self.parts = {**found["parts"], **self.parts}
            self.errors = found["errors"]
            self.kernels = found["kernels"]
            self.peers = found.get("peers")
            self.gaps = found.get("gaps")
            self.times = found.get("times", {})
        return is_same

    def has_run(self, names):
        return any(self.parts[name]["status"] in ("passed", "failed") for name in names if name in self.parts)

    def has_failed(self, names):
        return any(self.parts[name]["status"] == "failed" for name in names if name in self.parts)

    def write(self):
        self.out.mkdir(parents=True, exist_ok=True)
        for name, text in (("report.json", self._as_json()), ("report.md", self._as_markdown())):
            draft = self.out / f".{name}"
            draft.write_text(text)
            draft.replace(self.out / name)

    def _why_not(self):
        return self.why_not or "the GPU was not asked yet"

    def _targets(self):
        return targets.evaluate(self.kernels, self.parts, (self.device or {}).get("name", ""))

    def _as_json(self):
        found = {
            "commit": self._commit,
            "date": time.strftime("%Y-%m-%d"),
            "status": "run" if self.device else "not run",
            "why": self.why_not or "",
            "device": self.device,
            "targets": self._targets(),
            "parts": self.parts,
            "times": self.times,
            "errors": self.errors,
            "kernels": self.kernels,
            "peers": self.peers,
            "gaps": self.gaps,
        }
        return json.dumps(found, indent=2) + "\n"

    def _as_markdown(self):
        title = "# GPU report" if self.device else f"# GPU report: NOT RUN: {self._why_not()}"
        if self.device and not self.has_run(self.parts):
            title = "# GPU report: NOT RUN: no part came to its work"
        elif self.device and self.device.get("name", "").startswith("emulated"):
            title = "# GPU report: EMULATED: a rehearsal in software, whose figures mean nothing"
        lines = [title, "", f"Commit {self._commit}, {time.strftime('%Y-%m-%d')}.", ""]
        if self.device:
            lines += [f"* {key}: {value}" for key, value in self.device.items()]
        lines += ["", "## Targets", "", *targets.as_lines(self._targets())]
        lines += ["", "## Parts", "", "| part | status | |", "|---|---|---|"]
        lines += [f"| {name} | {part['status']} | {_note(part)} |" for name, part in self.parts.items()]
        if self.times:
            took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in self.times.items())
            lines += ["", f"Took: {took}."]
        if self.errors:
            lines += ["", "## Errors against the reference", ""]
            lines += ["| suite | largest error | of the bound that its test derives |", "|---|---|---|"]
            lines += [_error_row(suite, errors) for suite, errors in self.errors.items()]
        if self.kernels:
            lines += ["", "## Kernels", "", _limits(self.kernels["limits"]), ""]
            lines += ["| family | what | us | MB | GFLOP | GB/s | TFLOP/s | share | of | target | met |"]
            lines += ["|---|---|---|---|---|---|---|---|---|---|---|"]
            lines += [_kernel_row(row) for row in self.kernels["kernels"]]
        if self.peers:
            lines += ["", "## Peers", "", *peers.as_lines(self.peers, self.kernels, self.parts)]
        if self.gaps:
            lines += ["", "## Launch gaps", "", *gap_lines(self.gaps)]
        return "\n".join(lines) + "\n"


def _found_in(path):
    """Returns the report in this place; {}: none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def commit():
    file = ROOT / "COMMIT"  # only a bundle has one
    if file.exists():
        return file.read_text().strip()
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _note(part):
    figures = [f"{key} {value}" for key, value in part.items() if key not in ("status", "why")]
    return "; ".join(([part["why"]] if part["why"] else []) + figures).replace("|", "/")


def gap_lines(gaps):
    lines = [
        "By the device's clock: a step as a stream's launches, as a graph, and as a graph whose kernels start early; its kernels",
        "alone, and their bytes at the copy bandwidth. In the graph, a kernel's time is what the graph takes less without it.",
        "",
    ]
    for step in gaps:
        lines += [
            f"{step['step']}: {step['launches']} launches in {step['step_us']:.1f} us; as a graph {step['graph_us']:.1f} us, with "
            f"early starts {step['early_us']:.1f} us; alone {step['alone_us']:.1f} us; bytes {step['least_us']:.1f} us.",
            "",
            "| kernel | bytes, us | alone, us | event to event, us | in the graph, us |",
            "|---|---|---|---|---|",
            *map(_op_row, step["ops"]),
            "",
        ]
    return lines


def _op_row(op):
    return "| " + " | ".join([op["what"], *(f"{op[name]:.2f}" for name in OP_TIMES)]) + " |"


def _error_row(suite, errors):
    worst = errors.get("worst_error")
    share = errors.get("worst_error_over_bound")
    return f"| {suite} | {'' if worst is None else f'{worst:.3g}'} | {'' if share is None else f'{share:.0%}'} |"


def _limits(limits):
    bus = "".join(f", {what} {limits[name]:.1f}" for what, name in BUS.items() if limits.get(name))
    return (
        f"Copy {limits['copy_gb_s']:.0f} GB/s (read + write){bus}, bf16 products "
        f"{limits['matrix_tflop_s']:.0f} TFLOP/s, measured in the same run."
    )


def _kernel_row(row):
    seconds = row["us"] * 1e-6
    target = f"{row['target']:.0%}" if row["target"] else ""
    met = {True: "yes", False: "no", None: ""}[row["met"]]
    return (
        f"| {row['family']} | {row['what']} | {row['us']:.1f} | {row['bytes'] * 1e-6:.1f} "
        f"| {row['flops'] * 1e-9:.1f} | {row['bytes'] / seconds * 1e-9:.0f} "
        f"| {row['flops'] / seconds * 1e-12:.0f} | {row['fraction']:.0%} | {row['of']} | {target} | {met} |"
    )
