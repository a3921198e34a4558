"""The fleet on one page, and in one /metrics."""

from __future__ import annotations

import html
import json
import time
from typing import Any, Mapping

from .coordinator import Coordinator
from .http import Answer, Request
from .orders import Outcome

PAGE = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>{title}</title>
<style>body{{font:14px system-ui;margin:2em}}td,th{{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}}
.no{{color:#b00}}</style><h1>{title}</h1><p>{summary}</p><table>{rows}</table>"""

# Of all that this conductor has seen. Moved: requests that went on elsewhere; lost: that did not.
COUNTERS = ("updates_total", "updates_failed_total", "deaths_total", "moved_requests_total", "lost_requests_total")
# Of a replica, by their names in its tree's status.
SUMS = {"running": "num_running", "waiting": "num_waiting", **{name: name for name in (
    "output_tokens_total", "output_tokens_per_s")}}


class FleetStatus:
    """What was found out last. Owns nothing that is not found out again."""

    def __init__(self, fleet: str):
        self.fleet = fleet
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.skew_s = 0.0  # of the latest update: from the first replica's commit to the last's
        self.said: dict[str, Any] = {"fleet": fleet, "replicas": {}}

    def record(self, outcome: Outcome) -> None:
        self.counts["updates_total" if outcome.ok else "updates_failed_total"] += 1
        reports = [each.get("report") or {} for each in outcome.replicas.values()]
        times = [report["committed_at"] for report in reports if report.get("committed_at")]
        if outcome.ok and times:
            self.skew_s = max(times) - min(times)

    def forget(self, member: str) -> None:
        self.said["replicas"].pop(member, None)

    def refresh(
        self, coordinator: Coordinator, answers: Mapping[str, Mapping[str, Any]], places: Mapping[str, Mapping[str, Any]],
        slots: Mapping[int, Any],
    ) -> None:
        committed = coordinator.committed
        replicas = {}
        for member, answer in answers.items():
            if member not in places:
                continue
            known = coordinator.members[member]
            parts = answer.get("reply", {}).get("replicas", []) if answer["ok"] else []
            epoch = max((part["epoch"] for part in parts), default=0)
            replicas[member] = {
                "machine": places[member]["machine"],
                "url": places[member]["url"],
                "standing": known.standing.value,
                "why": known.why,
                "state": "unreachable" if not parts else parts[0]["state"],
                "epoch": epoch,
                "digest": parts[0].get("digest", "") if parts else "",
                "lag": max(0, committed.epoch - epoch) if committed else 0,
                **{shown: sum(part.get(name, 0) for part in parts) for shown, name in SUMS.items()},
            }
        self.said = {
            "fleet": self.fleet,
            "time": time.time(),
            "generation": coordinator.generation,
            "phase": coordinator.phase.value,
            "updates_waiting": coordinator.num_waiting,
            "epoch": committed.epoch if committed else 0,
            "label": committed.label if committed else "",
            "digest": committed.digest if committed else "",
            "slots": len(slots),
            "ready": sum(each["standing"] == "ready" for each in replicas.values()),
            "skew_s": self.skew_s,
            **self.counts,
            "why_not_started": {number: slot.why for number, slot in slots.items() if slot.why},
            "replicas": replicas,
        }

    # ---- as others read it ----

    def metrics(self) -> str:
        said = self.said
        lines = []
        for name in ("slots", "ready", "epoch", "skew_s", *COUNTERS):
            metric = "pitstop_fleet_" + {"skew_s": "commit_skew_seconds", "ready": "ready_replicas"}.get(name, name)
            lines += [f"# TYPE {metric} {'counter' if name in COUNTERS else 'gauge'}", f"{metric} {said.get(name, 0)}"]
        for name in ("epoch", "lag", "running", "waiting", "output_tokens_total"):
            metric = f"pitstop_fleet_replica_{name}"
            lines.append(f"# TYPE {metric} {'counter' if name.endswith('_total') else 'gauge'}")
            lines += [f'{metric}{{replica="{member}"}} {each[name]}' for member, each in said["replicas"].items()]
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        said = self.said
        columns = (
            "standing", "state", "epoch", "lag", "digest", "running", "waiting", "output_tokens_per_s", "machine", "url", "why",
        )
        rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in ("replica", *columns))]
        for member, each in said["replicas"].items():
            mark = "" if each["standing"] == "ready" else ' class="no"'
            cells = [member, *(f"{each[name]:.0f}" if isinstance(each[name], float) else each[name] for name in columns)]
            rows.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(str(cell or ''))}</td>" for cell in cells))
        shown = [name for name in said if name not in ("fleet", "replicas", "time", "why_not_started")]
        summary = ", ".join(f"{name.replace('_', ' ')} {said[name]}" for name in shown)
        for number, why in said.get("why_not_started", {}).items():
            summary += f". Slot {number} does not start: {why}"
        title = html.escape(f"pitstop fleet {self.fleet}")
        return PAGE.format(title=title, summary=html.escape(summary), rows="\n".join(rows))


class StatusPages:
    """/, /status (JSON), /metrics, /health (200 once a replica is ready)."""

    def __init__(self, status: FleetStatus):
        self._status = status

    async def handle(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer('{"message": "GET, HEAD"}', 405)
        pages = {
            "/": lambda: Answer(self._status.page(), kind="text/html; charset=utf-8"),
            "/status": lambda: Answer(json.dumps(self._status.said)),
            "/metrics": lambda: Answer(self._status.metrics(), kind="text/plain; version=0.0.4; charset=utf-8"),
            "/health": lambda: Answer("", 200 if self._status.said.get("ready", 0) else 503),
        }
        return pages.get(request.path, lambda: Answer(json.dumps({"message": ", ".join(pages)}), 404))()
