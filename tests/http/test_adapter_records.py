"""What trees say of their adapters: the digest of the configuration, and the records of loads and unloads."""

import contextlib
import json
import re
import sys

import pytest

from http_client import Http
from lora_files import config_of, exact_adapter, write_adapter
from places import short_directory
from process_tree import ROOT, live_tree

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)


@pytest.fixture(scope="module")
def adapter():
    return exact_adapter(1)[0]


@pytest.fixture(scope="module", params=[("--tp", 1), ("--tp", 2, "--dp", 2)], ids=["tp1", "tp2dp2"])
def served(request):
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *request.param) as tree:
        yield tree


@pytest.fixture
def http(served):
    return Http(served.url)


def load(http, name, directory):
    answer = http.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)})
    assert answer.status == 200, answer
    return answer.json


def event_of(http):
    """The page's next event."""
    with contextlib.closing(http.connect()) as connection:
        connection.request("GET", "/status/events")
        return json.loads(connection.getresponse().readline().removeprefix(b"data: "))


def test_the_digest_of_the_configuration_tells_two_scales_apart(http, adapter, served, tmp_path):
    """The same tensors with another lora_alpha have the same digest."""
    with pitstop.Client(served.run_dir) as client, pitstop.Engine(run_dir=str(served.run_dir)) as engine:
        answers = []
        for alpha in (8, 9):
            directory = write_adapter(tmp_path / str(alpha), adapter, config_of(lora_alpha=alpha))
            answers.append(load(http, "one", directory))
            digest = answers[-1]["adapter_config_digest"]
            assert re.fullmatch("[0-9a-f]{32}", digest), digest
            assert load(http, "one", directory)["adapter_config_digest"] == digest, "the same text"
            (card,) = [card for card in http.get("/v1/models").json["data"] if card["parent"] is not None]
            assert card["adapter_config_digest"] == digest
            (loaded,) = engine.adapters()
            assert loaded.config_digest == digest
            for replica in client.status()["replicas"]:
                assert [each["config_digest"] for each in replica["adapters"]] == [digest]
            assert [each["config_digest"] for each in event_of(http)["adapters"]["shown"]] == [digest]
        assert answers[0]["adapter_digest"] == answers[1]["adapter_digest"]
        assert answers[0]["adapter_config_digest"] != answers[1]["adapter_config_digest"]
        # The guard of a part: it continues only a version with this configuration.
        part = dict(list(adapter.items())[:2])
        with pytest.raises(pitstop.PitstopError) as wrong:
            engine.load_adapter("one", part, partial=True, adapter_config_digest=answers[0]["adapter_config_digest"])
        assert "(adapter_config_digest)" in str(wrong.value)
        update = engine.load_adapter(
            "one", part, partial=True, adapter_config_digest=answers[1]["adapter_config_digest"]
        )
        assert update.config_digest == answers[1]["adapter_config_digest"]
        back = engine.rollback_adapter("one")
        assert back.config_digest == answers[1]["adapter_config_digest"]
        engine.unload_adapter("one")


def test_loads_are_recorded_with_their_adapters_apart_from_the_models_updates(http, adapter, served, tmp_path):
    """In status, on the page and in the metrics."""
    directory = write_adapter(tmp_path / "one", adapter)
    with pitstop.Client(served.run_dir) as client:
        before = client.status()
        load(http, "one", directory)
        assert http.post("/load_lora_adapter", {"lora_name": "two", "lora_path": "/nowhere"}).status == 404
        assert http.post("/unload_lora_adapter", {"lora_name": "one"}).status == 200
        assert http.post("/unload_lora_adapter", {"lora_name": "one"}).status == 400
        after = client.status()
    for status in (before, after):
        assert not status.get("updates") and status.get("updates_total", 0) == 0, "none is of the model"
    said = after["adapter_updates"][-4:]
    assert [(each["what"], each["adapter"], each["ok"]) for each in said] == [
        ("update_weights", "one", True),
        ("update_weights", "two", False),
        ("unload_adapter", "one", True),
        ("unload_adapter", "one", False),
    ]
    assert said[1]["code"] == said[3]["code"] == "not_found"
    assert said[0]["epoch"] == said[2]["epoch"] > 0 and said[0]["digest"] == said[2]["digest"] != ""
    event = event_of(http)
    assert [each["adapter"] for each in event["adapter_updates"][-4:]] == ["one", "two", "one", "one"]
    assert event["updates"] == []
    metrics = http.get("/metrics").body.decode()
    for name in ("", "_failed"):
        (line,) = [
            each for each in metrics.splitlines() if each.startswith(f"pitstop_adapter_updates{name}_total{{}} ")
        ]
        assert float(line.split()[1]) == after[f"adapter_updates{name}_total"] >= 2
    assert "\npitstop_updates_total{} 0\n" in metrics and "pitstop_update_phase_seconds" not in metrics
