"""Places that are commonly mistaken for a checkpoint: recognized, and answered with a remedy in one line."""

import json
import subprocess
import sys

import pytest

from process_tree import ROOT, run
from test_bad_models import change_config, copy_model, refusal

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"


@pytest.fixture
def model(place):
    return copy_model(place / "model")


def without_weights(model):
    (model / "model.safetensors").unlink()
    return model


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_git_lfs_pointer(model, place, name):
    (model / name).write_text(POINTER)
    line = refusal(model, place)
    assert f"{name} is a git-lfs pointer" in line and "git lfs pull" in line


def test_gguf(model, place):
    (without_weights(model) / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    assert "it contains model-Q4_K_M.gguf: GGUF is not supported" in refusal(model, place)
    ended = run("serve", "--model", model / "model-Q4_K_M.gguf", "--run-dir", place / "tree")
    assert ended.returncode == 2 and "GGUF is not supported" in ended.stderr


def test_an_adapter(place):
    (place / "lora").mkdir()
    (place / "lora" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-0.6B"}))
    line = refusal(place / "lora", place)
    assert "contains an adapter of Qwen/Qwen3-0.6B; serve its model, and then load it with load-adapter NAME " in line


def test_a_pickle(model, place):
    (without_weights(model) / "pytorch_model.bin").write_bytes(b"PK")
    line = refusal(model, place)
    assert "it contains pytorch_model.bin: pickled weights are not supported" in line and "save_pretrained" in line


def test_a_slow_tokenizer(model, place):
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.model").write_bytes(b"\n")
    assert "it has tokenizer.model and no tokenizer.json; save a fast tokenizer" in refusal(model, place)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors"])
def test_a_quantized_checkpoint_is_refused_by_its_method(model, place, method):
    change_config(model, quantization_config={"quant_method": method, "bits": 4})
    line = refusal(model, place)
    assert f"quantization_config by {method}: quantized checkpoints are not supported" in line
    assert "serve the checkpoint that it was quantized from" in line


def test_a_family_that_is_not_served(model, place):
    change_config(model, architectures=["Gemma3ForCausalLM"])
    line = refusal(model, place)
    assert "architectures 'Gemma3ForCausalLM' is not supported; supported are LlamaForCausalLM, " in line


def test_a_name_without_its_organization(place):
    ended = run("serve", "--model", "Qwen3-0.6B")
    assert ended.returncode == 2 and "is called ORG/NAME" in ended.stderr


def test_a_file_for_a_directory(model):
    ended = run("serve", "--model", model / "config.json")
    assert ended.returncode == 2 and "this is a file; name the directory that contains it" in ended.stderr


def test_updates_say_what_a_place_is_instead(shared_tree, model, place):
    def why(path):
        ended = run("update", path, "--run-dir", shared_tree.run_dir)
        assert ended.returncode == 1
        return ended.stderr

    assert "the directory does not exist" in why(place / "nothing")
    assert "it is a file; name the directory" in why(model / "config.json")
    (model / "model.safetensors").write_text(POINTER)
    assert "is a git-lfs pointer" in why(model)
    without_weights(model)
    assert "neither model.safetensors nor" in why(model)
    (model / "x.gguf").write_bytes(b"GGUF")
    assert "it contains x.gguf: GGUF is not supported" in why(model)


PUSH = """
import sys, pitstop
sys.path.insert(0, sys.argv[3])
from push_once import load
weights = {sys.argv[4] + name: tensor for name, tensor in load(sys.argv[2]).items()}
try:
    with pitstop.Engine(run_dir=sys.argv[1]) as engine:
        engine.update_weights(weights)
except pitstop.PitstopError as error:
    print(error.message)
"""


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod."])
def test_names_of_a_wrapped_model_are_said_once(shared_tree, wrapper):
    ended = subprocess.run(
        [sys.executable, "-c", PUSH, str(shared_tree.run_dir), str(ROOT / "launch/models/stories"),
         str(ROOT / "tests/tree"), wrapper],
        capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "client/python"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert f"names begin with '{wrapper}'; without it they are this model's" in ended.stdout
    assert len(ended.stdout) < 400, ended.stdout


def test_a_list_of_problems_is_cut(model, place):
    change_config(model, intermediate_size=512, hidden_size=256)
    line = refusal(model, place)
    assert "problem(s)" in line and " more" in line
    assert len(line) < 1500, len(line)
