"""Adapters of a fleet: loaded, replaced and unloaded on every replica or on none, and loaded by one that joins."""

import json
import pathlib
import sys
import tempfile
import threading
import time

import numpy

from machines import START_S, another_version, machines, places, weights_of
from pitstop import PitstopError
from pitstop.client import Client
from pitstop.fleet import Fleet

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from chaos import adapters  # noqa: E402  (after the path)

SAMPLING = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
PROMPT = "Once upon a time"


def make(directory, weights, seed):
    """An adapter of the attention's projections of the first layer."""
    rng = numpy.random.default_rng(seed)
    tensors = {}
    for name in ("q_proj", "v_proj"):
        module = f"model.layers.0.self_attn.{name}"
        num_out, num_in = weights[f"{module}.weight"].shape
        tensors[f"{module}.lora_A.weight"] = rng.normal(0.0, 1.0, (4, num_in)).astype(numpy.float32)
        tensors[f"{module}.lora_B.weight"] = rng.normal(0.0, 0.3, (num_out, 4)).astype(numpy.float32)
    described = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "layers_to_transform": [0],
        "bias": "none",
    }
    adapters.write(directory, described, tensors)
    return adapters.digest_of(tensors)


def loaded(fleet):
    """The loaded adapters, as each tree's own status reports them: {member: {name: digest}}."""
    said = {}
    for member, place in places(fleet).items():
        with Client(place["run_dir"]) as client:
            of_tree = client.status()["replicas"][0].get("adapters", [])
        said[member] = {each["adapter"]["name"]: each["adapter"]["digest"] for each in of_tree}
    return said


def expect(fleet, num, **digests):
    said = loaded(fleet)
    assert len(said) == num and all(each == digests for each in said.values()), (said, digests)
    assert {each.name: each.digest for each in fleet.adapters()} == digests
    assert {name: each["digest"] for name, each in fleet.status()["adapters"].items()} == digests


def answers(fleet, **options):
    """An output of every replica: sessions spread over the replicas."""
    outputs = [fleet.generate(PROMPT, SAMPLING, session=str(i), **options) for i in range(24)]
    assert len({output.spans[0].replica for output in outputs}) == len(places(fleet))
    return outputs


def refusal_of(call, code):
    try:
        call()
    except PitstopError as error:
        assert error.code == code, error
        return error
    raise AssertionError("it was taken")


def until_told(fleet, name, words):
    """Waits until the fleet's status says why the replica with `name` in its name is not ready: for these words."""
    deadline = time.monotonic() + START_S
    why = ""
    while time.monotonic() < deadline:
        for member, each in fleet.status()["replicas"].items():
            if name in member and each["why"]:
                why = each["why"]
                if words in why:
                    return
        time.sleep(0.2)
    raise AssertionError(f"{name} said '{why}', without '{words}'")


def replaced_in_flight(fleet, directory):
    """Requests of the first version go on with the second one."""
    long = {**SAMPLING, "max_new_tokens": 300}
    outputs = []
    threads = [
        threading.Thread(
            target=lambda i=i: outputs.append(fleet.generate(PROMPT, long, session=str(i), adapter="policy"))
        )
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    fleet.load_adapter("policy", directory, label="step 2", policy="keep")
    for thread in threads:
        thread.join()
    assert len(outputs) == 6
    return outputs


def main():
    with tempfile.TemporaryDirectory(prefix="pitstop-adapters-") as directory:
        run_in(pathlib.Path(directory))
    print(json.dumps({"replicas": 3}))


def run_in(directory):
    with machines(2) as made, Fleet("stories", replicas=2, threads=1, start_timeout=START_S) as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        first, second = (make(directory / name, weights, seed) for name, seed in (("first", 1), ("second", 2)))
        of_model = {output.text for output in answers(fleet)}
        assert len(of_model) == 1

        outcome = fleet.load_adapter("policy", directory / "first", label="step 1")
        assert [each["outcome"] for each in outcome.replicas.values()] == ["committed"] * 2, outcome
        expect(fleet, 2, policy=first)
        adapted = answers(fleet, adapter="policy")
        assert {output.adapter.digest for output in adapted} == {first}
        assert len({output.text for output in adapted} | of_model) == 2
        assert {output.text for output in answers(fleet)} == of_model

        error = refusal_of(lambda: fleet.load_adapter("other", directory / "nowhere"), "not_found")
        assert "nowhere" in error.message, error
        config = json.loads((directory / "first" / "adapter_config.json").read_text())
        error = refusal_of(
            lambda: fleet.load_adapter("policy", directory / "first", {**config, "r": 8}), "invalid_argument"
        )
        assert len(error.reply["replicas"]) == 2, error.reply
        expect(fleet, 2, policy=first)

        outcome = fleet.update_weights(another_version(weights, 1), label="step 1")
        assert {each["outcome"] for each in outcome.replicas.values()} == {"committed"}, outcome
        expect(fleet, 2, policy=first)

        digests = {output.adapter.digest for output in replaced_in_flight(fleet, directory / "second")}
        assert digests <= {first, second}, digests
        expect(fleet, 2, policy=second)
        fleet.load_adapter("other", directory / "first", pinned=True)

        made.add()
        tensors, config = (directory / "second" / name for name in ("adapter_model.safetensors", "adapter_config.json"))
        tensors.rename(directory / "away")
        (slot,) = fleet.add_replicas(1)
        words = f"'{directory / 'second'}' holds neither adapter_model.safetensors nor adapter_model.bin"
        until_told(fleet, f"slot-{slot}.", words)
        (directory / "away").rename(tensors)
        text = config.read_text()
        config.write_text(json.dumps({**json.loads(text), "lora_alpha": 77}))
        until_told(fleet, f"slot-{slot}.", "(adapter_config_digest)")
        config.write_text(text)
        fleet.until_ready(timeout=START_S)
        expect(fleet, 3, policy=second, other=first)
        assert {output.adapter.digest for output in answers(fleet, adapter="policy")} == {second}
        status = fleet.status()
        assert {(each["epoch"], each["digest"]) for each in status["replicas"].values()} == {
            (status["epoch"], status["digest"])
        }

        fleet.unload_adapter("other")
        expect(fleet, 3, policy=second)
        error = refusal_of(lambda: fleet.unload_adapter("other"), "not_found")
        assert "loaded are 'policy'" in error.message, error
        refusal_of(lambda: fleet.generate(PROMPT, SAMPLING, adapter="other"), "not_found")


if __name__ == "__main__":
    main()
