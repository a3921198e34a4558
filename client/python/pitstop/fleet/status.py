"""The fleet's status page, and its /metrics."""

from __future__ import annotations

import html
import json
import time
from typing import Any, Mapping, Optional, Sequence

from .coordinator import Coordinator
from .http import Answer, Request
from .orders import Outcome

# The colours and shapes are those of a tree's page (http_proc/observe/status_page.inc).
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{verdict} · {title}</title><style>
:root{{--bg:#0e1116;--panel:#161b22;--line:#262d37;--text:#e6edf3;--dim:#8b97a5;--good:#3fb950;--warn:#d29922;--bad:#f85149;
color-scheme:dark}}
@media (prefers-color-scheme:light){{:root{{--bg:#f5f7fa;--panel:#fff;--line:#dde3ea;--text:#1b2430;--dim:#5d6b7a;
--good:#1a7f37;--warn:#9a6700;--bad:#cf222e;color-scheme:light}}}}
*{{box-sizing:border-box}}body{{margin:0;padding:20px 24px;background:var(--bg);color:var(--text);
font:14px/1.45 system-ui,sans-serif;font-variant-numeric:tabular-nums}}main{{max-width:1180px;margin:0 auto}}
h1{{font-size:18px}}.panel{{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:14px 16px;
margin-bottom:14px;overflow-x:auto}}.{kind}{{border-left:6px solid var(--{kind})}}.said{{font-size:20px;font-weight:600}}
.dim,th,a{{color:var(--dim)}}.bad td{{color:var(--bad)}}table{{border-collapse:collapse;width:100%}}
td,th{{text-align:left;padding:5px 12px 5px 0;white-space:nowrap}}td{{border-top:1px solid var(--line)}}
.grid{{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:14px}}.grid b{{font-size:24px;display:block}}
body.gone section{{opacity:.4}}</style></head><body><main><h1>{title}</h1>
<section class="panel {kind}"><div class="said">{verdict}</div><div class="dim">{serves}</div></section>
<div class="grid">{tiles}</div><section class="panel"><table>{rows}</table></section>
<a href="metrics">metrics</a> <a href="status">status as JSON</a></main>
<script>
async function renew() {{
    try {{
        const answer = await fetch(location.href);
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.querySelector("main").replaceWith(page.querySelector("main"));
        document.title = page.title;
        document.body.classList.remove("gone");
    }} catch {{
        document.title = "No answer · {title}";
        document.querySelector(".said").textContent = "No answer";
        document.body.classList.add("gone");
    }}
    setTimeout(renew, 2000);
}}
setTimeout(renew, 2000);
</script></body></html>"""

# Counts since this conductor started. Moved: requests that continued at another replica; lost: requests that did not.
COUNTERS = ("updates_total", "updates_failed_total", "deaths_total", "moved_requests_total", "lost_requests_total")
# Counts of replicas that speculate, and their names in a tree's status.
DRAFTS = {
    "sampling_passes_total": "passes",
    "draft_rows_total": "rows",
    "draft_tokens_total": "drafted",
    "draft_tokens_accepted_total": "accepted",
}
# Sums over replicas, by their names in a tree's status.
SUMS = {
    "running": "num_running",
    "waiting": "num_waiting",
    **{name: name for name in ("output_tokens_total", "output_tokens_per_s")},
}


class FleetStatus:
    """The latest status. All of it can be computed again."""

    def __init__(self, fleet: str):
        self.fleet = fleet
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.drafts: dict[str, int] = {}  # by the names in DRAFTS, once a replica has reported them
        self._drafts_of: dict[str, dict[str, int]] = {}  # by member, in its last report
        self.skew_s = 0.0  # in the latest update: from the first replica's commit to the last one's
        self.said: dict[str, Any] = {"fleet": fleet, "replicas": {}}

    def record(self, outcome: Outcome) -> None:
        self.counts["updates_total" if outcome.ok else "updates_failed_total"] += 1
        reports = [each.get("report") or {} for each in outcome.replicas.values()]
        times = [report["committed_at"] for report in reports if report.get("committed_at")]
        if outcome.ok and times:
            self.skew_s = max(times) - min(times)

    def forget(self, member: str) -> None:
        self.said["replicas"].pop(member, None)
        self._drafts_of.pop(member, None)

    def _add_drafts(self, member: str, parts: Sequence[Mapping[str, Any]]) -> Optional[dict[str, int]]:
        """Counts what a replica has verified since its previous answer. A restarted tree begins with 0."""
        told = [part["drafts"] for part in parts if part.get("drafts")]
        if not told:
            return None
        sums = {shown: sum(each[name] for each in told) for shown, name in DRAFTS.items()}
        before = self._drafts_of.get(member, sums)
        was_restarted = any(sums[name] < before[name] for name in DRAFTS)
        for name, now in sums.items():
            self.drafts[name] = self.drafts.get(name, 0) + (now if was_restarted else now - before[name])
        self._drafts_of[member] = sums
        return sums

    def refresh(
        self,
        coordinator: Coordinator,
        answers: Mapping[str, Mapping[str, Any]],
        places: Mapping[str, Mapping[str, Any]],
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
                "drafts": self._add_drafts(member, parts),
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
            "adapters": {each.name: {"label": each.label, "digest": each.digest} for each in committed.adapters}
            if committed
            else {},
            "slots": len(slots),
            "ready": sum(each["standing"] == "ready" for each in replicas.values()),
            "skew_s": self.skew_s,
            **self.counts,
            "drafts": dict(self.drafts) or None,
            "why_not_started": {number: slot.why for number, slot in slots.items() if slot.why},
            "replicas": replicas,
        }

    # ---- formats for readers ----

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
        if not said.get("drafts"):
            return "\n".join(lines) + "\n"
        for name in DRAFTS:
            metric = f"pitstop_fleet_{name}"
            lines += [f"# TYPE {metric} counter", f"{metric} {said['drafts'][name]}"]
            metric = f"pitstop_fleet_replica_{name}"
            lines.append(f"# TYPE {metric} counter")
            lines += [
                f'{metric}{{replica="{member}"}} {each["drafts"][name]}'
                for member, each in said["replicas"].items()
                if each["drafts"]
            ]
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        said = self.said
        ready, slots = said.get("ready", 0), said.get("slots", 0)
        kind, verdict = (
            ("good", "Serving")
            if ready == slots and slots
            else ("warn", "Serving with fewer")
            if ready
            else ("bad", "None is ready")
        )
        name = f"version {said.get('epoch')} ({said['label']})" if said.get("label") else f"epoch {said.get('epoch')}"
        serves = f"{name}, digest {said.get('digest', '')[:12]}" if said.get("epoch") else "no version yet"
        for number, why in said.get("why_not_started", {}).items():
            serves += f". Slot {number} does not start: {why}"
        tiles = {
            "replicas ready": f"{ready} of {slots}",
            "tokens per second": f"{sum(each['output_tokens_per_s'] for each in said['replicas'].values()):.0f}",
            "running, waiting": " + ".join(
                str(sum(each[name] for each in said["replicas"].values())) for name in ("running", "waiting")
            ),
            "updates, failed": f"{said.get('updates_total', 0)}, {said.get('updates_failed_total', 0)}",
            "latest commit within": f"{1e3 * said.get('skew_s', 0.0):.1f} ms",
            "deaths, requests moved": f"{said.get('deaths_total', 0)}, {said.get('moved_requests_total', 0)}",
        }
        title = f"pitstop fleet {self.fleet}"
        return PAGE.format(
            title=html.escape(title),
            kind=kind,
            verdict=verdict,
            serves=html.escape(serves),
            rows=self._rows(),
            tiles="".join(
                f'<section class="panel"><span class="dim">{name}</span><b>{text}</b></section>'
                for name, text in tiles.items()
            ),
        )

    def _rows(self) -> str:
        heads = (
            "replica",
            "standing",
            "state",
            "version",
            "behind",
            "running",
            "waiting",
            "tokens/s",
            "machine",
            "page",
            "why",
        )
        rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in heads)]
        for member, each in self.said["replicas"].items():
            url = html.escape(each["url"] or "", quote=True)
            cells = [
                member,
                each["standing"],
                each["state"],
                f"{each['epoch']} {each['digest'][:8]}",
                each["lag"],
                each["running"],
                each["waiting"],
                f"{each['output_tokens_per_s']:.0f}",
                each["machine"],
                None,
                each["why"],
            ]
            shown = [html.escape(str("" if cell is None else cell)) for cell in cells]
            shown[9] = f'<a href="{url}">{url}</a>' if url else "no HTTP"
            mark = "" if each["standing"] == "ready" else ' class="bad"'
            rows.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in shown))
        return "\n".join(rows)


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
