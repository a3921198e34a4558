"""pitstop.integrations.nemo_rl: generate, refit, and the colocated cycle.

The package index has only a placeholder of NeMo-RL. Replacements of its two classes, by line:
"""

import abc
import json
import os
import sys
import types

sys.path.insert(0, os.environ["PITSTOP_CLIENT"])


class GenerationInterface(abc.ABC):  # noqa: B024
    """shim: the abstract methods of nemo_rl.models.generation.interfaces, by their names."""

    init_collective = generate = prepare_for_generation = finish_generation = abc.abstractmethod(lambda self: None)


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


for package in ("nemo_rl", "nemo_rl.distributed", "nemo_rl.models", "nemo_rl.models.generation"):
    stand_in(package)  # shim
stand_in("nemo_rl.distributed.batched_data_dict", BatchedDataDict=dict)  # shim: a dict with more calls
stand_in("nemo_rl.models.generation.interfaces", GenerationInterface=GenerationInterface)  # shim

import torch  # noqa: E402

from pitstop import PitstopError  # noqa: E402
from pitstop.integrations.nemo_rl import PitstopGeneration  # noqa: E402
from weights import NUM_TOKENS, load  # noqa: E402


def main(url, other, prompt):
    stories = os.path.join(os.path.dirname(other), "stories")
    generation = PitstopGeneration(stories, pad_token_id=2045, max_new_tokens=NUM_TOKENS, threads=1)
    ids = json.loads(prompt)
    lengths = [len(ids), len(ids) - 1]
    data = {
        "input_ids": torch.tensor([ids, ids[:-1] + [2045]]),  # right-padded
        "input_lengths": torch.tensor(lengths),
    }

    def sample():
        out = generation.generate(data, greedy=True)
        for i, length in enumerate(lengths):
            end = int(out["unpadded_sequence_lengths"][i])
            assert out["output_ids"][i, :length].tolist() == ids[:length]
            assert end == length + int(out["generation_lengths"][i])
            assert (out["output_ids"][i, end:] == 2045).all() and (out["logprobs"][i, end:] == 0).all()
            assert (out["logprobs"][i, :length] == 0).all() and (out["logprobs"][i, length:end] < 0).all()
        return out["output_ids"][0, lengths[0] : lengths[0] + int(out["generation_lengths"][0])].tolist()

    said = {"before": sample()}
    generation.refit(load(other), label="step 1")
    said["after"] = sample()
    generation.refit_from_disk(stories)
    assert sample() == said["before"]
    generation.finish_generation()
    generation.prepare_for_generation(tags=["weights"])
    generation.refit(load(other))
    generation.prepare_for_generation(tags=["kv_cache"])
    said["colocated"] = sample()
    assert generation.invalidate_kv_cache()
    try:
        generation.update_weights_from_collective()
    except PitstopError as error:
        assert error.code == "unsupported"
    else:
        raise AssertionError("a group that nobody joined")
    generation.shutdown()
    print(json.dumps(said))


main(*sys.argv[1:4])
