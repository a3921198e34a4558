"""The status page: its events, and the page itself in a browser.

PITSTOP_SCREENSHOT=docs/status_page.png also keeps the picture that the page's documentation shows.
"""

import json
import os
import pathlib
import re
import shutil
import threading

import pytest

from browser import CHROMIUM, Browser
from process_tree import ROOT, wait_until

STORIES = ROOT / "launch" / "models" / "stories"


def first_events(http, count):
    """The first events of the page's stream, which has no end of its own."""
    connection = http.connect()
    connection.request("GET", "/status/events")
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("Content-Type").startswith("text/event-stream")
    events = []
    while len(events) < count:
        line = response.readline().decode()
        if line.startswith("data: "):
            events.append(json.loads(line[6:]))
    connection.close()
    return events


def test_the_page_is_one_file_without_outside_assets(http):
    answer = http.get("/")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    page = answer.body.decode()
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    outside = re.findall(r'(?:src|href)="(?!data:)[^"]*"|url\((?!data:)|@import|https?://(?!www\.w3\.org)', page)
    assert not outside, outside
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_events_come_by_themselves_and_say_the_state(http):
    first, second = first_events(http, 2)
    (replica,) = first["replicas"]
    assert first["model"] == "stories" and replica["state"] == "running" and replica["epoch"] >= 0
    assert {m["tag"] for m in replica["memory"]} == {"weights", "kv_cache"}
    assert second["uptime_s"] > first["uptime_s"]


def text_of_events(http, headers=None):
    connection = http.connect()
    connection.request("GET", "/status/events", headers=headers or {})
    line = connection.getresponse().readline().decode()
    connection.close()
    return line


def test_without_a_key_nobody_learns_where_anything_lies(tree, http, admin, front_end):
    """A caller whose key opens no data routes may see the events, too."""
    nowhere = "/nowhere-at-all/step-3"
    failed = admin.call("update_weights", update={"source": {"kind": "disk", "path": nowhere}})
    assert not failed["ok"] and nowhere in failed["message"]
    keyed = front_end(env={"PITSTOP_API_KEY": "api-secret"}).http
    strangers = [
        text_of_events(keyed),
        text_of_events(keyed, {"Authorization": "Bearer wrong"}),
        text_of_events(http, {"Host": "evil.example"}),
        text_of_events(http, {"Origin": "http://evil.example"}),
    ]
    for text in strangers:
        assert "stories" in text and "nowhere" not in text, "the reason of a failed update"
    owners = [text_of_events(http), text_of_events(keyed, {"Authorization": "Bearer api-secret"})]
    for text in owners:
        assert nowhere in text
    for text in strangers + owners:
        assert str(STORIES) not in text and str(tree.run_dir) not in text


def test_a_pause_and_an_update_are_in_the_events(http, admin):
    admin.call("pause_generation", mode="in_place")
    try:
        (event,) = first_events(http, 1)
        assert event["replicas"][0]["pause_mode"] == "in_place"
    finally:
        admin.call("continue_generation")
    reply = admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}, "label": "step-1"})
    assert reply["ok"], reply
    (event,) = first_events(http, 1)
    assert event["replicas"][0]["label"] == "step-1"
    assert event["updates"][-1]["ok"] and event["updates"][-1]["total_s"] > 0


def test_a_later_stream_of_events_gets_the_earlier_history(http, admin):
    """A stream that is opened after a pause has the pause in its history."""

    def past():
        """The history at the beginning of a new stream. There are three events a second, so few
        streams are open at once.
        """
        return first_events(http, 3)[0]["history"]

    def generate_until_seen():
        body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
        assert http.post("/v1/completions", body).status == 200
        return max(past()["tokens_per_s"], default=0) > 0

    wait_until(generate_until_seen, "a point with tokens")
    admin.call("pause_generation", mode="in_place")
    try:
        wait_until(lambda: past()["paused"][-1:] == [True], "a point of the pause")
    finally:
        admin.call("continue_generation")
    wait_until(lambda: past()["paused"][-1:] == [False], "a point after the pause")
    first, second = first_events(http, 2)
    kept, epoch = first["history"], first["replicas"][0]["epoch"]
    assert True in kept["paused"] and kept["paused"][-1] is False
    assert kept["age_s"] == sorted(kept["age_s"], reverse=True) and 0 <= kept["age_s"][-1] < 20
    assert {len(values) for values in kept.values()} == {len(kept["age_s"])}
    assert kept["epochs"][-1] == [epoch] and max(kept["tokens_per_s"]) > 0
    assert "history" not in second, "it is sent once"


def test_the_events_say_what_requests_took_and_how_they_ended(http):
    wait_until(lambda: first_events(http, 3)[0]["recent"], "a first point")
    before = first_events(http, 1)[0]["recent"]
    body = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, "stream": True}
    assert http.post("/v1/completions", body).status == 200
    recent = first_events(http, 1)[0]["recent"]
    for name in ("first_token_s", "between_tokens_s", "queue_s"):
        assert 0 <= recent[name]["p50"] <= recent[name]["p95"] < 60, name
    assert recent["ended"] > before["ended"] or before["ended"] > 0
    assert recent["errors"] >= 0 and recent["aborted"] >= 0


def test_listeners_are_bounded_and_one_that_leaves_is_forgotten(http):
    def listen():
        connection = http.connect()
        connection.request("GET", "/status/events")
        return connection, connection.getresponse()

    listeners = [listen()]
    while listeners[-1][1].status == 200:
        assert len(listeners) < 1000
        listeners.append(listen())
    # The limit is 64 streams. Some are of earlier tests, if the server has not noticed their ends yet.
    assert listeners[-1][1].status == 503 and 32 < len(listeners) <= 65
    for connection, response in listeners:
        response.close()
        connection.close()

    def is_accepted():
        connection, response = listen()
        connection.close()
        return response.status == 200

    wait_until(is_accepted, "a place to listen at")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium (the Debian package) to show the page in")
def test_the_page_shows_the_tree_in_a_browser(http, admin, tmp_path):
    stop = threading.Event()

    def keep_busy():
        body = {"prompt": "Once upon a time", "n": 4, "max_tokens": 300, "ignore_eos": True, "stream": True}
        while not stop.is_set():
            http.post("/v1/completions", body)

    def update(step):
        source = {"kind": "disk", "path": str(STORIES)}
        assert admin.call("update_weights", update={"source": source, "label": f"step-{step}"})["ok"]

    worker = threading.Thread(target=keep_busy)
    worker.start()
    try:
        with Browser(tmp_path / "profile") as browser:
            browser.open(http.url + "/")
            browser.wait_for("document.title.startsWith('Serving')")
            for step in (2, 3):
                update(step)
                browser.wait_for(f"document.getElementById('version').textContent.includes('step-{step}')")
            admin.call("pause_generation", mode="in_place")
            browser.wait_for("document.getElementById('said').textContent === 'Paused'")
            assert "in_place" in browser.value("document.getElementById('why').textContent")
            # The server samples once a second, and the page twice.
            browser.wait_for("history.filter(point => point.paused).length >= 6")
            admin.call("continue_generation")
            browser.wait_for("document.title.startsWith('Serving')")
            events = int(browser.value("document.documentElement.dataset.events"))
            browser.wait_for(f"Number(document.documentElement.dataset.events) >= {events + 6}")
            # The headline is Idle between two requests of the client, so only "stuck" is tested here.
            browser.wait_for(
                "['kv_cache', 'step-3', 'nothing is stuck'].every(text => document.body.innerText.includes(text))"
            )
            times = browser.value("document.getElementById('first').textContent")
            assert re.fullmatch(r"[\d.]+ (µs|ms|s) p95 [\d.]+ (µs|ms|s)", times), times
            browser.screenshot(tmp_path / "page.png")
            # After a reload the history stays: the times count from the page's load.
            browser.value("window.isBeforeReload = true")
            browser.call("Page.reload")
            browser.wait_for("!window.isBeforeReload && history.some(point => point.paused && point.t < 0)")
    finally:
        stop.set()
        worker.join()
    assert (tmp_path / "page.png").stat().st_size > 20_000
    keep = os.environ.get("PITSTOP_SCREENSHOT")
    if keep:
        shutil.copyfile(tmp_path / "page.png", pathlib.Path(keep))
