"""The results of tests/gpu/first, written again after each step: steps, figures with their limits, and the next
actions."""

import json
import time

from report import Report, gap_lines

LOG_BYTES_MAX = 12 << 20  # log.txt: a borrowed machine returns at most 16 MiB per file
WHY_MAX = 400  # characters of a step's reason in the table; the log has all


class Log:
    """log.txt: the programs' output as it arrives, under the name of its step."""

    def __init__(self, path):
        self._file = open(path, "a", errors="replace")
        self._left = LOG_BYTES_MAX - path.stat().st_size

    def write(self, text):
        self._left -= len(text)
        if self._left > 0:
            self._file.write(text)
        elif self._left + len(text) > 0:
            self._file.write("\n(the log is full)\n")

    def flush(self):
        self._file.flush()

    def head(self, step):
        self.write(f"\n==== {step} {'=' * (90 - len(step))}\n")
        self.flush()


class FirstReport(Report):
    """`figures`: {what: {measured, unit, limit, of, share, target, hint}}; `facts`: lines of the probe."""

    def __init__(self, out):
        super().__init__(out)
        self.figures = {}
        self.facts = []
        self.machine = {}
        self.log = None  # set once the directory exists
        self._earlier = {}

    def open_log(self):
        self.check_place()
        self._earlier = self._found()  # before it is rewritten
        self.log = Log(self.out / "log.txt")

    def take_earlier(self):
        """Takes over the steps of an earlier call in this directory, if it was of the same commit on the same GPU; they
        are not repeated."""
        found = self._earlier
        device = found.get("device") or {}
        if [found.get("commit"), device.get("uuid")] != [self._commit, self.device.get("uuid")]:
            return
        self.parts = {**found["steps"], **self.parts}
        self.figures = {**found["figures"], **self.figures}
        self.facts = self.facts or found["facts"]
        self.kernels = self.kernels or found["kernels"]
        self.gaps = self.gaps or found.get("gaps")
        self.write()  # otherwise an interruption of the next step would lose the earlier steps

    def _found(self):
        try:
            return json.loads((self.out / "report.json").read_text())
        except (OSError, ValueError):
            return {}

    def figure(self, what, measured, unit, limit, of, target, hint=""):
        """`measured` and `limit` in `unit`: a rate, where more is better, or a time ("ms", "s"),
        where less is better.
        """
        if not measured or not limit:
            return
        share = limit / measured if unit in ("ms", "s") else measured / limit
        self.figures[what] = {
            "measured": measured,
            "unit": unit,
            "limit": limit,
            "of": of,
            "share": share,
            "target": target,
            "hint": hint,
        }
        self.write()

    def kernel_figures(self, rows, hints):
        for row in rows:
            if not row["target"]:
                continue
            of_bytes = row["of"] != "matrix rate"
            rate = row["bytes"] / row["us"] * 1e-3 if of_bytes else row["flops"] / row["us"] * 1e-6
            what = f"{row['family']}: {row['what']}"
            hint = next((text for begin, text in hints.items() if begin in row["what"]), "")
            self.figure(
                what, rate, "GB/s" if of_bytes else "TFLOP/s", rate / row["fraction"], row["of"], row["target"], hint
            )

    def next_steps(self):
        """Returns lines: failures first, then figures by the gain of reaching their target."""
        lines = [
            f"`{name}` failed: {_short(step['why'])}" for name, step in self.parts.items() if step["status"] == "failed"
        ]
        for fact in self.facts:
            if not fact.get("ok", True):
                lines.append(f"the product relies on another answer: {fact['what']}: {_rest_of(fact)}")
        missed = [(1 - row["share"] / row["target"], what, row) for what, row in self.figures.items() if row["target"]]
        for gain, what, row in sorted(missed, key=lambda each: -each[0]):
            if gain > 0:
                hint = f": {row['hint']}" if row["hint"] else ""
                lines.append(
                    f"{gain:.0%} of its time goes if {what} reaches {row['target']:.0%} of the {row['of']} "
                    f"(now {row['share']:.0%}){hint}"
                )
        skipped = [name for name, step in self.parts.items() if step["status"] == "skipped"]
        if skipped:
            lines.append(f"not run: {', '.join(skipped)}")
        return lines or ["nothing: every step passed, and every figure reaches its target"]

    def _as_json(self):
        found = {
            "commit": self._commit,
            "date": time.strftime("%Y-%m-%d"),
            "status": "run" if self.device else "not run",
            "why": self.why_not or "",
            "device": self.device,
            "machine": self.machine,
            "steps": self.parts,
            "figures": self.figures,
            "facts": self.facts,
            "kernels": self.kernels,
            "gaps": self.gaps,
            "next": self.next_steps(),
        }
        return json.dumps(found, indent=2) + "\n"

    def _as_markdown(self):
        name = (self.device or {}).get("name", "")
        title = f"# First report: {name}" if self.device else f"# First report: NOT RUN: {self._why_not()}"
        if name.startswith("emulated"):
            title = "# First report: EMULATED: a rehearsal in software, whose figures mean nothing"
        lines = [title, "", f"Commit {self._commit}, {time.strftime('%Y-%m-%d')}.", ""]
        lines += [f"* {key}: {value}" for key, value in {**(self.device or {}), **self.machine}.items()]
        lines += ["", "## What to do next, by gain", ""]
        lines += [f"{number}. {line}" for number, line in enumerate(self.next_steps(), 1)]
        lines += ["", "## Steps", "", "| step | status | seconds | of | |", "|---|---|---|---|---|"]
        for step, found in self.parts.items():
            row = [step, found["status"], found.get("seconds", ""), found.get("limit_s", ""), _short(_all_of(found))]
            lines.append("| " + " | ".join(map(str, row)) + " |")
        lines += ["", "## Figures, each beside its target and the limit measured in this run", ""]
        lines += ["| figure | measured | limit here | share | target | holds |", "|---|---|---|---|---|---|"]
        lines += [_figure_row(what, row) for what, row in self.figures.items()]
        if self.gaps:
            lines += ["", "## A decode step by its kernels", "", *gap_lines(self.gaps)]
        lines += ["", "## What the probe found", "", "| question | as relied on | |", "|---|---|---|"]
        lines += [
            f"| {fact['what']} | {'yes' if fact.get('ok') else '**no**'} | {_rest_of(fact)} |" for fact in self.facts
        ]
        return "\n".join(lines) + "\n"


def _figure_row(what, row):
    target = f"{row['target']:.0%}" if row["target"] else ""
    holds = "" if not row["target"] else "**yes**" if row["share"] >= row["target"] else "**no**"
    unit = row["unit"]
    limit = f"{row['limit']:.4g} {unit} ({row['of']})"
    return f"| {what} | {row['measured']:.4g} {unit} | {limit} | {row['share']:.0%} | {target} | {holds} |"


def _rest_of(fact):
    rest = {key: value for key, value in fact.items() if key not in ("what", "ok")}
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in rest.items()
    )


def _all_of(step):
    rest = [f"{key} {value}" for key, value in step.items() if key not in ("status", "why", "seconds", "limit_s")]
    return "; ".join([*([step["why"]] if step["why"] else []), *rest])


def _short(text):
    text = text.replace("|", "/")
    return text if len(text) <= WHY_MAX else text[: WHY_MAX - 3] + "..."
