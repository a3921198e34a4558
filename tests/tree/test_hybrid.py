"""A hybrid model on real trees: it serves, chunks and batches change nothing, and trainers update its weights under
their own names."""

import numpy
import pytest

import pitstop
from hybrid_model import DECAY, as_published, tensors, write_hybrid
from lora_files import MODULES, config_of, exact_adapter, write_adapter
from pitstop.digests import tensor_digest
from pitstop.push import WeightPusher
from process_tree import run
from weights_sources import digest_of, raw_source, refused

GREEDY = {"temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False}
TOLERANCE = 1e-4  # of logprobs: the merged model rounds in another order
PROMPTS = ["Once upon a time", "The king", "One day a little girl " * 9, "She said", "In the big"]


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return write_hybrid(tmp_path_factory.mktemp("models") / "old", tensors(1))


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def tree(request, start_tree, old):
    return start_tree("--model", old, "--tp", request.param, "--compute", "fp32", "--chunked-prefill-size", 32)


@pytest.fixture
def client(tree):
    with pitstop.Client(tree.run_dir) as client:
        yield client


def text(tree, prompt=PROMPTS[0], **options):
    with tree.door() as door:
        return door.generate(prompt, max_new_tokens=40, **GREEDY, **options).tokens


def bits(output):
    return output.tokens, output.logprobs


def test_P6_batches_chunks_and_repeats_change_nothing(tree, client):
    fields = {"max_new_tokens": 40, "logprobs": {"enabled": True}, **GREEDY}
    with tree.door() as door:
        alone = [bits(door.generate(prompt, **fields)) for prompt in PROMPTS]
        assert "rounded" not in tree.log(), "A_log is resident in fp32, as it was stored"
        assert len({tuple(tokens) for tokens, _ in alone}) == len(PROMPTS)
        again = [bits(door.generate(prompt, **fields)) for prompt in PROMPTS]
        assert again == alone, "whatever the cache has of the prompts"
        client.flush_cache()
        together = [bits(output) for output in door.finish([door.start(prompt, **fields) for prompt in PROMPTS])]
    assert together == alone


def test_P2_weights_are_updated_by_the_names_of_trainers(tree, client, start_tree, place):
    before, first = text(tree), digest_of(client)
    new = write_hybrid(place / "new", tensors(2))
    second = client.update_weights(str(new))["digest"]
    after = text(tree)
    assert after != before and second != first
    client.rollback_weights()
    assert text(tree) == before and digest_of(client) == first

    # Under the names of a model with vision, from a directory and as tensors: its other tensors are
    # skipped.
    wrapped = write_hybrid(place / "wrapped", as_published(tensors(2)), is_wrapped=True)
    assert client.update_weights(str(wrapped))["digest"] == second
    client.rollback_weights()
    assert client.update_weights(source=raw_source(as_published(tensors(2))))["digest"] == second
    assert text(tree) == after
    assert "2 tensor(s) of the update that this model does not use are ignored" in tree.log()

    # One tensor, in bf16 or fp32.
    decay = {DECAY: numpy.float32([-1, -2, -3, -4])}
    short = {
        DECAY.replace("model.", "model.language_model."): (decay[DECAY].view(numpy.uint32) >> 16).astype(numpy.uint16)
    }
    digests = [client.update_weights(source=raw_source(part), partial=True)["digest"] for part in (decay, short)]
    assert digests[0] == digests[1] != second
    with pitstop.Client(start_tree("--model", wrapped, "--compute", "fp32").run_dir) as other:
        assert digest_of(other) == second

    # A bf16 trainer's tensors, with the digests of all of them in their resident form.
    client.rollback_weights()
    half = {
        n: (a.view(numpy.uint32) >> 16).astype(numpy.uint16) if n.endswith("A_log") else a
        for n, a in tensors(2).items()
    }
    assert WeightPusher(client).push(as_published(half))["ok"]
    assert text(tree) != before
    client.rollback_weights()
    halved = write_hybrid(place / "halved", half)
    digests = set()
    for directory in (new, halved, wrapped):
        for how in ([], ["--adopt"]) if directory is new else ([],):
            pushed = run("push", directory, "--run-dir", tree.run_dir, *how)
            assert "as declared" in pushed.stdout, pushed
            digests.add(digest_of(client))
    assert len(digests) == 2 and second in digests, "rounded decay rates are others"
    lacking = {name: array for name, array in tensors(2).items() if name != DECAY}
    refusal = run("push", write_hybrid(place / "lacking", lacking), "--run-dir", tree.run_dir, "--adopt")
    assert refusal.returncode and f"lacks 1 tensor(s) of the model, the first is '{DECAY}'" in refusal.stderr, refusal

    # A manifest may have the names of a model with vision, too.
    declared = {"name": next(iter(short)), "digest": tensor_digest(decay[DECAY])}
    client.update_weights(source=raw_source(decay), partial=True, manifest=[declared])
    wrong = [{**declared, "digest": "0" * 32}]
    error = refused(client.update_weights, source=raw_source(decay), partial=True, manifest=wrong)
    assert error.code == "data_loss" and f"{declared['name']}: the resident tensor's digest" in error.message, error

    error = refused(client.update_weights, source=raw_source({DECAY.replace("A_log", "A"): decay[DECAY]}), partial=True)
    assert "linear_attn.A" in error.message, error


DELTA_MODULES = tuple(
    f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
)


@pytest.mark.parametrize("prefix", ["base_model.model.", "base_model.model.model.language_model."])
def test_an_adapter_of_all_projections_gives_what_the_merged_model_gives(tree, client, place, prefix):
    adapter, whole = exact_adapter(3, base=tensors(1), modules=MODULES + DELTA_MODULES)
    assert sum(".linear_attn." in name for name in adapter) == 2 * 2 * len(DELTA_MODULES)
    if prefix.endswith("language_model."):
        adapter = {name.removeprefix("model."): each for name, each in adapter.items()}
    targets = sorted({module.rpartition(".")[2] for module in MODULES + DELTA_MODULES})
    directory = write_adapter(place / "adapter", adapter, config_of(target_modules=targets), prefix)

    def ask(**options):
        with tree.door() as door:
            return door.generate(PROMPTS[2], max_new_tokens=40, logprobs={"enabled": True}, **GREEDY, **options)

    alone = ask()
    assert client.load_adapter("policy", str(directory))["ok"]
    adapted, still_alone = ask(adapter="policy"), ask()
    assert still_alone.tokens == alone.tokens != adapted.tokens and still_alone.logprobs == alone.logprobs
    client.update_weights(str(write_hybrid(place / "merged", whole)))
    merged = ask()
    assert adapted.tokens == merged.tokens
    assert numpy.abs(numpy.array(adapted.logprobs) - merged.logprobs).max() < TOLERANCE


def test_an_adapter_of_a_convolution_is_refused_by_name(tree, client, place):
    directory = write_adapter(place / "adapter", {}, config_of(target_modules=["out_proj", "conv1d"]))
    error = refused(client.load_adapter, "policy", str(directory))
    assert "'model.layers.0.linear_attn.conv1d'" in error.message and "out_proj" not in error.message, error
