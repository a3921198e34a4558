"""A model with experts on real trees: it serves, and its experts are updated one by one, as
separate tensors.
"""

import sys

import numpy
import pytest

from expert_model import NUM_EXPERTS, floats, rounded, upcycled, write_experts
from process_tree import ROOT, run
from weights_sources import digest_of, raw_source, refused

sys.path.insert(0, str(ROOT / "tests/golden"))
import pitstop
from make_digests import model as digests_of  # noqa: E402  (after the path)
from pitstop.push import WeightPusher

GREEDY = {"temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False}
GATE = f"model.layers.3.mlp.experts.{NUM_EXPERTS - 1}.gate_proj.weight"
ROUTER = "model.layers.0.mlp.gate.weight"


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return write_experts(tmp_path_factory.mktemp("models") / "old", upcycled(1))


def new_tensors():
    return upcycled(2)


def test_groups_of_ranks_are_told(start_tree, old):
    tree = start_tree("--model", old, "--tp", 2, "--ep", 2)
    (replica,) = tree.door("admin").call("status")["replicas"]
    assert [worker["ep"] for worker in replica["workers"]] == [2, 2]
    whole = start_tree("--model", old)
    (alone,) = whole.door("admin").call("status")["replicas"][0]["workers"]
    assert alone["ep"] == 1 and all(
        worker["weight_bytes"] < 0.65 * alone["weight_bytes"] for worker in replica["workers"]
    )
    assert "(experts over 2 groups)" in run("status", "--run-dir", tree.run_dir).stdout


def test_a_dense_model_has_no_groups_of_ranks(place):
    ended = run("serve", "--run-dir", place / "tree", "--tp", 2, "--ep", 2)
    assert ended.returncode != 0 and "no experts for --ep 2" in ended.stderr, ended.stderr


def changed(**by_name):
    """The old model's tensors, with these in place of its own."""
    return upcycled(1) | by_name


RANKS = {"tp1": ("--tp", 1), "tp2": ("--tp", 2), "tp2 ep2": ("--tp", 2, "--ep", 2)}


@pytest.fixture(params=RANKS.values(), ids=RANKS)
def tree(request, start_tree, old):
    return start_tree("--model", old, *request.param, "--compute", "fp32")


@pytest.fixture
def client(tree, old):
    with pitstop.Client(tree.run_dir) as client:
        assert client.weight_digests()["digest"] == digests_of(old)["digest"], "of logical tensors, whatever tp is"
        yield client


def text(tree, prompt="Once upon a time"):
    with tree.door() as door:
        return door.generate(prompt, max_new_tokens=40, **GREEDY).tokens


def written(place, tensors):
    return write_experts(place, tensors)


def test_P2_experts_are_updated_whole_or_one_by_one(tree, client, old, place):
    before = text(tree)
    new = written(place / "new", new_tensors())
    assert client.update_weights(str(new))["digest"] == digests_of(new)["digest"]
    after = text(tree)
    assert after != before, "the test's models differ"
    client.rollback_weights()
    assert text(tree) == before

    # One expert's gate, and a router: each makes a version, with a digest of the whole.
    gate = {GATE: rounded(-floats(upcycled(1)[GATE]))}
    router = {ROUTER: numpy.ascontiguousarray(upcycled(1)[ROUTER][::-1])}
    for number, tensors in enumerate((gate, router)):
        answer = client.update_weights(source=raw_source(tensors), partial=True)
        expected = written(place / f"part-{number}", changed(**tensors))
        assert answer["digest"] == digests_of(expected)["digest"]
        assert text(tree) != before
        client.rollback_weights()
    assert text(tree) == before


def packed(tensors):
    """In transformers 5's form: the experts of a layer in two tensors, gate over up."""
    apart = {name: array for name, array in tensors.items() if ".experts." not in name}
    layers = sorted({name.partition(".mlp.experts.")[0] for name in tensors if ".experts." in name})
    for layer in layers:
        of = lambda kind: [tensors[f"{layer}.mlp.experts.{e}.{kind}.weight"] for e in range(NUM_EXPERTS)]
        pairs = zip(of("gate_proj"), of("up_proj"))
        apart[f"{layer}.mlp.experts.gate_up_proj"] = numpy.stack([numpy.concatenate(pair) for pair in pairs])
        apart[f"{layer}.mlp.experts.down_proj"] = numpy.stack(of("down_proj"))
    return apart


def transposed(tensors):
    """In the form of Qwen3-VL-MoE's files."""
    return {n: array.swapaxes(1, 2).copy() if ".experts." in n else array for n, array in packed(tensors).items()}


@pytest.mark.parametrize("form", [packed, transposed])
def test_P2_tensors_of_all_experts_are_the_same_weights(tree, client, start_tree, place, form):
    new = digests_of(written(place / "apart", new_tensors()))["digest"]
    together = form(new_tensors())
    assert client.update_weights(source=raw_source(together))["digest"] == new
    client.rollback_weights()
    directory = written(place / "together", together)
    assert client.update_weights(str(directory))["digest"] == new
    client.rollback_weights()
    assert WeightPusher(client).push(together)["digest"] == new
    client.rollback_weights()
    assert "digest" in run("push", directory, "--run-dir", tree.run_dir).stdout and digest_of(client) == new
    (name,) = [name for name in together if name.startswith("model.layers.2.") and name.endswith("gate_up_proj")]
    client.rollback_weights()
    client.update_weights(source=raw_source({name: together[name]}), partial=True)
    expected = changed(
        **{
            n: array
            for n, array in new_tensors().items()
            if n.startswith("model.layers.2.mlp.experts.") and "down" not in n
        }
    )
    assert digest_of(client) == digests_of(written(place / "part", expected))["digest"]
    error = refused(client.update_weights, source=raw_source({name: together[name][:, :, 1:].copy()}), partial=True)
    assert name in error.message and "shape" in error.message, error
    with pitstop.Client(start_tree("--model", directory).run_dir) as other:
        assert digest_of(other) == new


def test_P2_tensors_that_are_no_experts_are_refused_by_name(tree, client, old, place):
    before = client.weight_digests()["digest"]
    tensors = upcycled(1)
    wrong = {
        GATE.replace(f"experts.{NUM_EXPERTS - 1}", f"experts.{NUM_EXPERTS}"): tensors[GATE],
        GATE.replace("gate_proj", "gate_up_proj"): tensors[GATE],
        GATE.replace(".weight", ".bias"): tensors[GATE][:1],
    }
    for name, array in wrong.items():
        error = refused(client.update_weights, source=raw_source({name: array}), partial=True)
        assert error.code == "invalid_argument" and name in error.message, error
    error = refused(client.update_weights, source=raw_source({GATE: tensors[GATE][1:]}), partial=True)
    assert GATE in error.message and "shape" in error.message, error
    lacking = {name: array for name, array in tensors.items() if name != GATE}
    error = refused(client.update_weights, str(written(place / "lacking", lacking)))
    assert GATE in error.message and "missing" in error.message, error
    assert client.weight_digests()["digest"] == before


def test_P6_batches_do_not_change_what_experts_compute(tree, client):
    prompts = ["Once upon a time", "The king", "One day a little girl", "She said", "In the big"]
    alone = [text(tree, prompt) for prompt in prompts]
    with tree.door() as door:
        rids = [door.start(prompt, max_new_tokens=40, **GREEDY) for prompt in prompts]
        together = [output.tokens for output in door.finish(rids)]
    assert together == alone
