"""Arguments that start the other engines: accepted here, or refused by name and with the reason."""

import os
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "tree"))

import pitstop  # noqa: E402
from pitstop.local_tree import flags_of  # noqa: E402
from process_tree import environment  # noqa: E402

PASSED = {
    "dtype": "bfloat16",
    "trust_remote_code": True,
    "enforce_eager": True,
    "max_model_len": 512,
    "gpu_memory_utilization": 0.5,
    "tensor_parallel_size": 1,
    "disable_log_stats": True,
    "seed": 0,
    "enable_prefix_caching": True,
    "quantization": None,
    "enable_lora": True,
    "tokenizer": "stories",
}
REFUSED = {
    "dtype": ("float32", "resident in bfloat16"),
    "quantization": ("fp8", "quantized checkpoints are not supported"),
    "lora_paths": (["a=/a"], "load_adapter() loads one"),
    "pipeline_parallel_size": (2, "tp splits them"),
    "speculative_config": ({"model": "x", "method": "eagle"}, "drafts come from texts"),
    "speculative_algorithm": ("EAGLE", "drafts come from texts"),
    "speculative_num_steps": (3, "drafts come from texts"),
    "worker_extension_cls": ("a.B", "nothing that is received is run"),
    "tokenizer": ("other", "the tokenizer is the model's"),
    "kv_cache_dtype": ("fp8", "KV has the precision of compute"),
}


def test_arguments_that_everybody_passes_are_taken():
    os.environ["PITSTOP_BUILD"] = environment()["PITSTOP_BUILD"]
    with pitstop.Engine("stories", threads=1, **PASSED) as engine:
        assert engine.generate("Once upon a time", {"max_new_tokens": 3}).text


def test_arguments_of_other_engines_are_flags_of_a_tree():
    flags = flags_of({"model": "stories", **PASSED})
    assert sorted(flags) == ["--mem-fraction=0.5", "--model=stories", "--no-graphs", "--tp=1"]
    assert flags_of({"load_format": "null", "dp": 2}) == ["--load-format=null", "--dp=2"]
    assert flags_of({"load_format": "safetensors"}) == []


def test_experts_over_ranks_are_ep():
    assert flags_of({"tp_size": 4, "ep_size": 2}) == ["--tp=4", "--ep=2"]
    assert sorted(flags_of({"tensor_parallel_size": 2, "enable_expert_parallel": True})) == ["--ep=2", "--tp=2"]
    assert flags_of({"enable_expert_parallel": False}) == []


def test_drafts_from_texts_are_speculate():
    assert flags_of({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 5}) == ["--speculate=4"]
    assert flags_of({"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 3}) == ["--speculate=8"]
    assert flags_of({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}) == ["--speculate=3"]
    assert flags_of({"speculative_config": {"method": "suffix"}}) == ["--speculate=8"]
    assert flags_of({"speculative_config": None, "speculative_algorithm": None}) == []


@pytest.mark.parametrize("config", ["ngram", '{"method": "ngram"}', ["ngram"]])
def test_a_configuration_of_drafts_that_is_no_dict_is_refused(config):
    with pytest.raises(pitstop.PitstopError, match=r"speculative_config=.*is a dict, such as \{'method'") as told:
        flags_of({"speculative_config": config})
    assert told.value.code == "unsupported"


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_is_not_served_is_refused_with_the_reason(name):
    value, why = REFUSED[name]
    with pytest.raises(pitstop.PitstopError) as told:
        pitstop.Engine("stories", **{name: value})
    assert told.value.code == "unsupported"
    assert told.value.message.startswith(f"Engine: {name}=") and why in told.value.message


def test_a_name_that_nobody_knows_is_a_type_error_and_said_once(capfd):
    os.environ["PITSTOP_BUILD"] = environment()["PITSTOP_BUILD"]
    with pytest.raises(TypeError, match="unexpected keyword argument: foo_bar"):
        pitstop.Engine("stories", foo_bar=1)
    with pytest.raises(pitstop.PitstopError, match="no such directory"):
        pitstop.Engine("/no/such/place")
    assert capfd.readouterr().err == "", "the exception has it"


def test_float8_is_refused_by_the_tensors_name():
    from pitstop.arrays import arrays_of

    tensor = type("Tensor", (), {"__module__": "torch", "dtype": "torch.float8_e4m3fn"})()
    with pytest.raises(TypeError, match="a.weight: dtype float8_e4m3fn; accepted are float32"):
        arrays_of({"a.weight": tensor})
