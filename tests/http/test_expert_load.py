"""The load of experts: counts in `status`, four numbers per layer in /metrics, a heat map on the
status page. The expected counts are those of the routes in the answers.
"""

import http.client
import json
import sys

import numpy
import pytest

from expert_model import NUM_EXPERTS, PER_TOKEN, upcycled, write_experts
from http_client import Http
from places import short_directory
from process_tree import ROOT, live_tree, wait_until
from routed_forms import of_slime

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

STORIES = ROOT / "launch/models/stories"
LAYERS = json.loads((STORIES / "config.json").read_text())["num_hidden_layers"]
DENSE = 2  # this layer has no experts


@pytest.fixture(
    scope="module", params=[("--tp", "1"), ("--tp", "2"), ("--tp", "2", "--ep", "2"), ("--dp", "2")], ids=" ".join
)
def served(request, tmp_path_factory):
    tensors = upcycled(1)
    for name in [name for name in tensors if f"layers.{DENSE}.mlp.experts.0." in name]:
        tensors[name.replace(".experts.0", "")] = tensors[name]
    tensors = {name: each for name, each in tensors.items() if f"layers.{DENSE}.mlp." not in name or ".mlp.gate_proj" in name
               or ".mlp.up_proj" in name or ".mlp.down_proj" in name}  # fmt: skip
    model = write_experts(tmp_path_factory.mktemp("models") / "experts", tensors, mlp_only_layers=[DENSE])
    with short_directory() as path, live_tree(path / "tree", "--port", "0", "--model", model, *request.param) as tree:
        yield tree


class Counted:
    """Runs requests and counts their routes."""

    def __init__(self, tree):
        self.http, self.client = Http(tree.url), pitstop.Client(tree.run_dir)
        self.expected = numpy.zeros((LAYERS, NUM_EXPERTS), numpy.int64)

    def run(self, num_prompt, num_output):
        self.client.flush_cache()
        answer = self.http.generate(
            input_ids=list(range(5, 5 + num_prompt)), max_new_tokens=num_output, temperature=0, ignore_eos=True,
            return_routed_experts=True, return_prompt_token_ids=True,
        )  # fmt: skip
        for row in of_slime(answer["meta_info"], num_prompt + num_output, LAYERS, PER_TOKEN):
            for layer, experts in enumerate(row):
                if layer != DENSE:
                    self.expected[layer, experts] += 1

    def load(self):
        return self.client.status().get("expert_load")

    def is_told(self):
        """Whether `load` has all counts. A step reports its counts and all earlier ones once a second."""
        self.run(4, 1)
        load = self.load()
        return load is not None and load["tokens"] == self.expected.tolist()


def test_counts_are_those_of_the_routes(served):
    counted = Counted(served)
    assert counted.load() is None, "nothing was computed"
    counted.run(40, 20)
    counted.run(7, 3)
    wait_until(counted.is_told, "the counts of all routes")
    load = counted.load()
    assert (load["layers"], load["num_experts"]) == (LAYERS, NUM_EXPERTS)
    assert sum(load["tokens"][DENSE]) == 0 and min(map(sum, load["tokens"][:DENSE])) > 0

    # No request runs, so /metrics, the status and the routes have the same counts.
    expected = counted.expected
    lines = counted.http.get("/metrics").body.decode().splitlines()
    sample = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    for layer in range(LAYERS):
        of_layer, labels = expected[layer], f'{{layer="{layer}"}}'
        if layer == DENSE:
            assert f"pitstop_expert_tokens_total{labels}" not in sample
            continue
        assert sample[f"pitstop_expert_tokens_total{labels}"] == of_layer.sum()
        assert sample[f"pitstop_expert_load_max_ratio{labels}"] == pytest.approx(of_layer.max() / of_layer.mean(), 1e-4)
        assert sample[f"pitstop_expert_load_min_ratio{labels}"] == pytest.approx(of_layer.min() / of_layer.mean(), 1e-4)
        assert sample[f"pitstop_experts_idle{labels}"] == (of_layer == 0).sum()

    connection = http.client.HTTPConnection(counted.http.host, counted.http.port, timeout=60)
    connection.request("GET", "/status/events")
    event = json.loads(connection.getresponse().readline().removeprefix(b"data: "))
    connection.close()
    assert event["experts"]["num_experts"] == NUM_EXPERTS
    assert [row["layer"] for row in event["experts"]["layers"]] == [layer for layer in range(LAYERS) if layer != DENSE]
    for row in event["experts"]["layers"]:
        of_layer = expected[row["layer"]]
        assert row["percents"] == pytest.approx(100 * of_layer / of_layer.mean(), abs=0.51)


def test_a_dense_model_has_no_load_of_experts(tmp_path):
    with short_directory() as path, live_tree(path / "tree", "--port", "0") as tree:
        http_, client = Http(tree.url), pitstop.Client(tree.run_dir)
        http_.generate(text="Once", max_new_tokens=2)
        assert "expert_load" not in client.status()
        assert "pitstop_expert" not in http_.get("/metrics").body.decode()
        client.close()
