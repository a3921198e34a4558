"""The fleet's status as text, its status page, and the commands of an installation without Ray."""

import http.server
import pathlib
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "http")]

from browser import CHROMIUM, Browser  # noqa: E402
from pitstop.fleet import command  # noqa: E402
from pitstop.fleet.status import FleetStatus  # noqa: E402

REPLICA = {
    "machine": "10.0.0.7",
    "url": "http://10.0.0.7:31000",
    "standing": "ready",
    "why": "",
    "state": "running",
    "epoch": 41,
    "digest": "9b3f4ea4" + 24 * "0",
    "lag": 0,
    "running": 0,
    "waiting": 0,
    "output_tokens_total": 5,
    "output_tokens_per_s": 0.0,
}
SAID = {
    "fleet": "fleet",
    "time": 1.0,
    "generation": 3,
    "phase": "idle",
    "updates_waiting": 0,
    "epoch": 41,
    "label": "<step>",
    "digest": REPLICA["digest"],
    "slots": 2,
    "ready": 1,
    "skew_s": 0.0013861656,
    "updates_total": 4,
    "updates_failed_total": 1,
    "deaths_total": 1,
    "moved_requests_total": 2,
    "lost_requests_total": 0,
    "why_not_started": {1: "no room"},
    "replicas": {"slot0": REPLICA, "slot1": {**REPLICA, "url": None, "standing": "aside", "why": "late", "lag": 1}},
}


def status():
    status = FleetStatus("fleet")
    status.said = SAID
    return status


def test_the_status_is_prose():
    lines = command.prose({**SAID, "status_url": "http://127.0.0.1:1"}).splitlines()
    assert lines[0] == "fleet fleet: 1 of 2 replicas are ready, version 41 (<step>), digest 9b3f4ea4"
    assert "took effect within 1.4 ms on all" in lines[1]
    assert "slot1: aside (late), running, version 41 (<step>), digest 9b3f4ea4, 1 behind" in "\n".join(lines)
    assert lines[-1] == "  slot 1 does not start: no room"


def test_a_version_without_a_label_is_an_epoch():
    said = {**SAID, "label": ""}
    told = command.prose(said)
    assert "2 replicas are ready, epoch 41, digest" in told and "running, epoch 41, digest" in told
    unnamed = FleetStatus("fleet")
    unnamed.said = said
    assert "epoch 41, digest 9b3f4ea4" in unnamed.page() and "version 41" not in unnamed.page()


class Coordinator:
    """The parts of a fleet that refresh() uses, before it has a version."""

    committed, generation, num_waiting = None, 1, 0

    class phase:
        value = "idle"

    class Member:
        class standing:
            value = "ready"

        why = ""

    def __init__(self, members):
        self.members = dict.fromkeys(members, self.Member)


def refresh(of, drafts):
    """`drafts`: {member: [(passes, rows, drafted, accepted) or None, for each data-parallel replica]}."""
    names = ("passes", "rows", "drafted", "accepted")
    answers = {}
    for member, told in drafts.items():
        parts = [
            {"epoch": 1, "state": "running", **({"drafts": dict(zip(names, each))} if each else {})} for each in told
        ]
        answers[member] = {"ok": True, "reply": {"replicas": parts}}
    places = {member: {"machine": "10.0.0.7", "url": None} for member in drafts}
    of.refresh(Coordinator(drafts), answers, places, {})


def test_counts_of_drafts_are_added_up_and_never_fall():
    of = FleetStatus("fleet")
    refresh(of, {"slot0": [None], "slot1": [None]})
    assert of.said["drafts"] is None and "draft" not in of.metrics(), "speculation is off"
    refresh(of, {"slot0": [(0, 0, 0, 0), (0, 0, 0, 0)], "slot1": [(0, 0, 0, 0)], "slot2": [None]})
    refresh(of, {"slot0": [(10, 4, 16, 9), (5, 1, 4, 4)], "slot1": [(7, 0, 0, 0)], "slot2": [None]})
    assert list(of.said["drafts"].values()) == [22, 5, 20, 13]
    metrics = of.metrics().splitlines()
    assert "pitstop_fleet_sampling_passes_total 22" in metrics and "pitstop_fleet_draft_tokens_total 20" in metrics
    assert 'pitstop_fleet_replica_draft_tokens_accepted_total{replica="slot0"} 13' in metrics
    assert not any("draft" in line and "slot2" in line for line in metrics), "it tells of none"
    refresh(of, {"slot0": [(2, 1, 4, 1), (0, 0, 0, 0)], "slot1": [(8, 1, 3, 2)]})  # slot0 was restarted
    assert list(of.said["drafts"].values()) == [25, 7, 27, 16]
    of.forget("slot1")
    refresh(of, {"slot0": [(2, 1, 4, 1), (0, 0, 0, 0)]})
    assert list(of.said["drafts"].values()) == [25, 7, 27, 16]
    assert "drafts: 27 verified, 16 right; 25 passes of requests" in command.prose(
        {**SAID, "drafts": of.said["drafts"]}
    )


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = status().page().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium (the Debian package) to show the page in")
def test_a_page_whose_fleet_is_gone_says_so(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"http://127.0.0.1:{server.server_port}/")
        browser.wait_for("document.title === 'Serving with fewer · pitstop fleet fleet'")
        for width in (400, 1280):
            for is_dark in (False, True):
                browser.resize(width)
                browser.be_dark(is_dark)
                assert browser.value("document.documentElement.scrollWidth") <= width
                colour = browser.value("getComputedStyle(document.body).backgroundColor")
                assert (colour == "rgb(14, 17, 22)") == is_dark
        server.shutdown()
        server.server_close()
        browser.wait_for("document.title === 'No answer · pitstop fleet fleet'")
        assert browser.value("getComputedStyle(document.querySelector('.grid section')).opacity") == "0.4"


def test_the_page_is_of_the_same_house():
    page = status().page()
    assert page.startswith("<!doctype html>") and '<meta name="viewport"' in page and "--panel:#161b22" in page
    house = (ROOT / "http_proc" / "observe" / "status_page.inc").read_text()
    for colour in ("#161b22", "#262d37", "#3fb950", "#f85149"):
        assert colour in house and colour in page
    assert "1.4 ms" in page and REPLICA["digest"] not in page and "&lt;step&gt;" in page and "<step>" not in page
    assert '<a href="http://10.0.0.7:31000">' in page and "no HTTP" in page and ">0</td>" in page


def test_an_empty_fleet_has_a_page():
    assert "None is ready" in FleetStatus("fleet").page()


def call(*words):
    program = "import sys; sys.modules['ray'] = None; from pitstop.fleet import command; sys.exit(command.main())"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "client" / "python"), "PATH": "/usr/bin:/bin"},
    )


def test_without_ray_help_is_there_and_the_rest_says_what_to_install():
    assert "launch/fleet update DIR" in call("--help").stdout
    done = call("status")
    assert done.returncode == 1 and done.stderr == "launch/fleet: a fleet needs Ray: pip install ray\n", done.stderr


def test_a_rollback_is_refused_with_the_way_back():
    done = call("rollback")
    assert done.returncode == 1 and "update to the previous version: update DIR" in done.stderr


def test_a_model_that_is_not_there_is_said_before_anything_starts():
    done = call("--model", "/nonexistent")
    assert done.returncode == 1 and "--model /nonexistent: the directory does not exist" in done.stderr
