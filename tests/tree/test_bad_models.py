"""A model that cannot be served: one line with the reason, exit code 3, nothing left behind."""

import json
import shutil
import struct

import pytest

from process_tree import ROOT, run

STORIES = ROOT / "launch" / "models" / "stories"


@pytest.fixture
def model(place):
    return copy_model(place / "model")


def copy_model(path):
    shutil.copytree(STORIES, path)
    for file in path.iterdir():
        file.chmod(0o644)
    path.chmod(0o755)
    return path


def refusals(model, place, *flags):
    """Returns the lines of standard error, one per problem."""
    ended = run("serve", "--model", model, "--run-dir", place / "tree", *flags)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == ""
    assert not (place / "tree").exists()
    lines = ended.stderr.splitlines()
    assert all(line.startswith("pitstop: ") for line in lines), ended.stderr
    return lines


def refusal(model, place, *flags):
    """Returns the only problem."""
    (line,) = refusals(model, place, *flags)
    return line


def header_of(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def last_tensor(header):
    """The tensor at the end of the file: changing its length leaves no gap."""
    return max(
        (name for name in header if name != "__metadata__"),
        key=lambda name: header[name]["data_offsets"][1],
    )


def write_safetensors(path, header, body):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def change_config(model, **fields):
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_no_such_directory(place):
    ended = run("serve", "--model", place / "nothing")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"pitstop: --model {place}/nothing: no such directory")
    assert len(ended.stderr.splitlines()) == 1


def test_an_empty_directory_is_two_problems(place):
    (place / "model").mkdir()
    lines = refusals(place / "model", place)
    assert len(lines) == 2
    assert any("tokenizer.json" in line for line in lines)
    assert any("config.json" in line for line in lines)


def test_a_config_that_is_not_json(model, place):
    (model / "config.json").write_text("{")
    assert "config.json" in refusal(model, place)


def test_a_config_of_an_unknown_family(model, place):
    change_config(model, architectures=["PigeonForCausalLM"], model_type="pigeon")
    assert "igeon" in refusal(model, place)


def test_a_config_with_a_negative_size(model, place):
    change_config(model, hidden_size=-128)
    assert "hidden_size" in refusal(model, place)


def test_a_shape_that_disagrees_with_the_config(model, place):
    change_config(model, intermediate_size=512)
    line = refusal(model, place)
    assert "mlp" in line and "512" in line and "384" in line


def test_a_truncated_safetensors_file(model, place):
    path = model / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert "model.safetensors" in refusal(model, place)


@pytest.mark.parametrize("size", [0, 4, 8, 100])
def test_a_safetensors_file_that_ends_in_its_header(model, place, size):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert "model.safetensors" in refusal(model, place)


def test_a_header_that_claims_to_be_enormous(model, place):
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 62) + path.read_bytes()[8:])
    assert "model.safetensors" in refusal(model, place)


def test_a_header_that_points_outside_the_file(model, place):
    path = model / "model.safetensors"
    header, body = header_of(path)
    name = last_tensor(header)
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = [begin, end + (end - begin)]
    header[name]["shape"][0] *= 2
    write_safetensors(path, header, body)
    line = refusal(model, place)
    assert "model.safetensors" in line and name in line


def test_a_missing_tensor(model, place):
    path = model / "model.safetensors"
    header, body = header_of(path)
    name = last_tensor(header)
    body = body[: header.pop(name)["data_offsets"][0]]
    write_safetensors(path, header, body)
    assert name in refusal(model, place)


def test_a_missing_shard(model, place):
    path = model / "model.safetensors"
    header, _ = header_of(path)
    first = path.rename(model / "model-00001-of-00002.safetensors")
    names = [name for name in header if name != "__metadata__"]
    index = dict.fromkeys(names, first.name)
    index[names[-1]] = "model-00002-of-00002.safetensors"
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert "model-00002-of-00002.safetensors" in refusal(model, place)


def test_an_index_that_leads_out_of_the_directory(model, place):
    header, _ = header_of(model / "model.safetensors")
    names = [name for name in header if name != "__metadata__"]
    (model / "model.safetensors").rename(place / "model.safetensors")
    index = dict.fromkeys(names, "../model.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert "../model.safetensors" in refusal(model, place)


def test_a_corrupt_tokenizer(model, place):
    (model / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {')
    assert "tokenizer.json" in refusal(model, place)


def test_a_tokenizer_of_an_unknown_kind(model, place):
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["type"] = "Pigeon"
    path.write_text(json.dumps(tokenizer))
    line = refusal(model, place)
    assert "tokenizer.json" in line and "Pigeon" in line


def test_a_missing_tokenizer(model, place):
    (model / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal(model, place)


def test_more_ranks_than_the_model_can_be_split_into(model, place):
    line = refusal(model, place, "--tp", 3)
    assert "3" in line


def test_a_pool_that_holds_no_page(model, place):
    line = refusal(model, place, "--max-total-tokens", 4, "--page-size", 16)
    assert "page" in line or "tokens" in line


def test_a_broken_generation_config_is_named_itself(model, place):
    (model / "generation_config.json").write_text("{")
    line = refusal(model, place)
    assert "generation_config.json" in line and "model/config.json" not in line


def test_two_families_in_one_config(model, place):
    change_config(model, model_type="llama")
    line = refusal(model, place)
    assert "Qwen3ForCausalLM" in line and "model_type" in line


# ---- tensors that transformers ties, leaves out or keeps wider ----

EMBEDDING = "model.embed_tokens.weight"


def add_tensor(model, name, dtype, shape, raw):
    path = model / "model.safetensors"
    header, body = header_of(path)
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
    write_safetensors(path, header, body + raw)


def generated(model, *flags):
    """Returns the output of a tree of this model, and its warnings."""
    ended = run("generate", "--model", model, "--temperature", 0, "--max-new-tokens", 12, *flags,
                "Once upon a time")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, [line for line in ended.stderr.splitlines() if "warning" in line]


def test_another_head_beside_tied_embeddings(model, place):
    header, body = header_of(model / "model.safetensors")
    begin, end = header[EMBEDDING]["data_offsets"]
    raw = bytearray(body[begin:end])
    raw[-1] ^= 1
    add_tensor(model, "lm_head.weight", "BF16", header[EMBEDDING]["shape"], bytes(raw))
    line = refusal(model, place, "--tp", 2)
    assert "tie_word_embeddings" in line and "lm_head.weight" in line


def test_an_extra_layer_is_served_if_asked(model, place):
    name = "model.layers.6.input_layernorm.weight"
    add_tensor(model, name, "BF16", [128], bytes(256))
    line = refusal(model, place)
    assert name in line and "--ignore-extra-tensors" in line
    add_tensor(model, "v_head.summary.weight", "F32", [2], bytes(8))
    text, warnings = generated(model, "--ignore-extra-tensors")
    assert text == generated("stories")[0]
    (warning,) = warnings
    assert name in warning and "v_head.summary.weight" in warning


def test_a_wider_checkpoint_says_that_it_is_rounded(model):
    path = model / "model.safetensors"
    header, body = header_of(path)
    wide_header, wide = {}, b""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        raw = body[slice(*entry["data_offsets"])]
        raw = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
        wide_header[name] = {**entry, "dtype": "F32", "data_offsets": [len(wide), len(wide) + len(raw)]}
        wide += raw
    write_safetensors(path, wide_header, wide)
    for flags in ((), ("--compute", "fp32", "--tp", 2)):
        text, warnings = generated(model, *flags)
        assert text == generated("stories", *flags)[0]
        (warning,) = warnings  # one rank reports it
        assert "F32 are rounded to BF16" in warning
