"""The status page on a phone, in dark mode, with failed updates, and after its tree has ended."""

import re

import pytest

from browser import CHROMIUM, Browser
from process_tree import ROOT, ProcessTree

STORIES = ROOT / "launch" / "models" / "stories"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium (the Debian package) to show the page in")


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "profile") as browser:
        yield browser


def fail_an_update(admin):
    path = "/nowhere-at-all/with/a/long/path/of/a/checkpoint/that/nobody/has/ever/written/step-000000041"
    assert not admin.call("update_weights", update={"source": {"kind": "disk", "path": path}})["ok"]


def test_nothing_runs_out_of_the_page_at_any_width(http, admin, browser):
    fail_an_update(admin)
    assert admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}, "label": "step-1"})[
        "ok"
    ]
    browser.open(http.url + "/")
    browser.wait_for("document.body.innerText.includes('step-1')")
    for width in (400, 1280):
        for is_dark in (False, True):
            browser.resize(width)
            browser.be_dark(is_dark)
            assert browser.value("document.documentElement.scrollWidth") <= width
            colour = browser.value("getComputedStyle(document.body).backgroundColor")
            assert (colour == "rgb(14, 17, 22)") == is_dark
    heights = browser.value("[...document.querySelectorAll('#updates tr:not(.note)')].map(row => row.offsetHeight)")
    assert max(heights) < 45, "no cell wraps"
    assert browser.value("document.querySelectorAll('#updates tr.note').length") >= 1


def test_a_version_without_a_label_is_an_epoch_and_units_are_there(http, admin, browser):
    reply = admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})
    browser.open(http.url + "/")
    browser.wait_for(f"document.title.includes('epoch {reply['epoch']}')")
    assert "tokens" in browser.value("document.getElementById('kv').textContent")
    assert browser.value("document.getElementById('memory').textContent").count(" of ") >= 1
    filled = browser.value("document.querySelectorAll('#memory .bar i')[1].style.width")
    assert float(filled.rstrip("%")) < 100, "of its capacity, not of the largest"


HOVER = """(() => {
    const chart = document.getElementById("chart"), box = chart.getBoundingClientRect();
    chart.dispatchEvent(new MouseEvent("mousemove", {clientX: box.right - 20}));
    return document.getElementById("hover").textContent;
})()"""


def test_the_mouse_over_the_chart_shows_the_values_there(http, browser):
    browser.open(http.url + "/")
    browser.wait_for("Number(document.documentElement.dataset.events) > 1")
    assert re.fullmatch(r"[\d.]+ m?s ago: \d+ tokens/s, (version \d+ “.*”|epoch \d+)", browser.value(HOVER))


def test_a_page_whose_tree_is_gone_says_so_everywhere(place, browser):
    tree = ProcessTree(place / "tree", "--port", "0")
    try:
        browser.open(tree.url + "/")
        browser.wait_for("document.title.startsWith('Idle')")
        tree.stop()
        browser.wait_for("document.title === 'No answer · pitstop'")
        assert browser.value("getComputedStyle(document.querySelector('.grid')).opacity") == "0.4"
    finally:
        tree.abandon()
