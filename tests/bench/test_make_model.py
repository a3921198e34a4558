"""Reads what pitstop_make_model writes with other code: Python's standard library alone.

The expected shapes follow from config.json by the rules of Hugging Face transformers, which are written down here a
second time.
"""

import json
import math
import os
import struct
import subprocess
import tempfile
import unittest

from bench_programs import program

MAKE_MODEL = program("make_model")
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


def make(directory, *args):
    command = [MAKE_MODEL, args[0], directory, *args[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


def read_safetensors(path):
    """name -> (dtype, shape, bytes); fails on a gap, an overlap or a byte too many."""
    with open(path, "rb") as file:
        data = file.read()
    (header_len,) = struct.unpack("<Q", data[:8])
    assert header_len % 8 == 0
    header = json.loads(data[8 : 8 + header_len])
    header.pop("__metadata__", None)
    body = data[8 + header_len :]
    tensors, expected_begin = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == expected_begin, name
        assert end - begin == math.prod(entry["shape"]) * DTYPE_BYTES[entry["dtype"]], name
        tensors[name] = (entry["dtype"], entry["shape"], body[begin:end])
        expected_begin = end
    assert expected_begin == len(body)
    return tensors


def read_model(directory):
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_safetensors(os.path.join(directory, "model.safetensors"))
    with open(index) as file:
        index = json.load(file)
    tensors = {}
    for name in sorted(set(index["weight_map"].values())):
        shard = read_safetensors(os.path.join(directory, name))
        assert all(index["weight_map"][tensor] == name for tensor in shard)
        tensors.update(shard)
    assert set(tensors) == set(index["weight_map"])
    assert sum(len(t[2]) for t in tensors.values()) == index["metadata"]["total_size"]
    return tensors


def expected_shapes(c):
    h, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    d = c.get("head_dim") or h // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": [v, h], "model.norm.weight": [h]}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [v, h]
    for i in range(c["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": [h],
            "post_attention_layernorm.weight": [h],
            "self_attn.q_proj.weight": [q, h],
            "self_attn.k_proj.weight": [kv, h],
            "self_attn.v_proj.weight": [kv, h],
            "self_attn.o_proj.weight": [h, q],
            "mlp.gate_proj.weight": [f, h],
            "mlp.up_proj.weight": [f, h],
            "mlp.down_proj.weight": [h, f],
        }
        if c["model_type"] == "qwen3_5_text":
            width = c["linear_num_value_heads"] * c["linear_value_head_dim"]
            heads = c["linear_num_value_heads"]
            mixer = {
                "in_proj_qkv.weight": [3 * width, h],
                "in_proj_z.weight": [width, h],
                "in_proj_b.weight": [heads, h],
                "in_proj_a.weight": [heads, h],
                "conv1d.weight": [3 * width, 1, c["linear_conv_kernel_dim"]],
                "A_log": [heads],
                "dt_bias": [heads],
                "norm.weight": [c["linear_value_head_dim"]],
                "out_proj.weight": [h, width],
            }
            layer |= {
                "self_attn.q_proj.weight": [2 * q, h],
                "self_attn.q_norm.weight": [d],
                "self_attn.k_norm.weight": [d],
            }
            if (i + 1) % c["full_attention_interval"] != 0:
                layer = {name: each for name, each in layer.items() if not name.startswith("self_attn.")}
                layer |= {f"linear_attn.{name}": each for name, each in mixer.items()}
        if c["model_type"] == "qwen2":
            layer |= {f"self_attn.{p}_proj.bias": [n] for p, n in (("q", q), ("k", kv), ("v", kv))}
        if c["model_type"] == "qwen3_moe":
            experts = [f"mlp.experts.{e}." for e in range(c["num_experts"])]
            layer = {name: each for name, each in layer.items() if not name.startswith("mlp.")}
            layer["mlp.gate.weight"] = [c["num_experts"], h]
            layer |= {e + f"{p}_proj.weight": [c["moe_intermediate_size"], h] for e in experts for p in ("gate", "up")}
            layer |= {e + "down_proj.weight": [h, c["moe_intermediate_size"]] for e in experts}
        if c["model_type"] in ("qwen3", "qwen3_moe"):
            layer |= {"self_attn.q_norm.weight": [d], "self_attn.k_norm.weight": [d]}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def floats(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return struct.unpack(f"<{len(data) // 4}f", data)
    if dtype == "F16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    bits = struct.unpack(f"<{len(data) // 2}H", data)
    return struct.unpack(f"<{len(bits)}f", b"".join(struct.pack("<I", b << 16) for b in bits))


SMALL = (
    "--layers",
    "2",
    "--hidden",
    "64",
    "--ffn",
    "96",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--head-dim",
    "16",
    "--vocab",
    "600",
)
SHAPES = (
    "tiny", "qwen3-0.6b", "qwen3-8b", "qwen3.5-0.8b", "experts-2b-a0.3b", "qwen2.5-0.5b", "llama-3.2-1b", "mistral-7b",
)  # fmt: skip


class MakeModel(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.addCleanup(self.root.cleanup)

    def model(self, name, *args):
        directory = os.path.join(self.root.name, name)
        made = make(directory, *args)
        self.assertEqual(made.returncode, 0, made.stderr)
        with open(os.path.join(directory, "config.json")) as file:
            return json.load(file), read_model(directory)

    def test_tensors_follow_from_the_config(self):
        for shape in SHAPES:
            with self.subTest(shape=shape):
                layers = ("--layers", "4") if shape == "qwen3.5-0.8b" else SMALL[:2]  # one of four layers has attention
                config, tensors = self.model(shape, shape, *layers, *SMALL[2:])
                self.assertEqual({n: t[1] for n, t in tensors.items()}, expected_shapes(config))
                self.assertEqual({t[0] for t in tensors.values()}, {"BF16"})

    def test_shards_threads_and_dtypes_hold_the_same_values(self):
        _, one = self.model("one", "tiny", *SMALL, "--threads", "1", "--seed", "7")
        for shards in ("2", "5"):
            _, many = self.model(f"many{shards}", "tiny", *SMALL, "--shards", shards, "--seed", "7")
            self.assertEqual(one, many)
        _, other = self.model("other", "tiny", *SMALL, "--seed", "8")
        self.assertNotEqual(one, other)
        for dtype in ("f16", "f32"):
            _, typed = self.model(dtype, "tiny", *SMALL, "--dtype", dtype, "--seed", "7")
            for name, tensor in typed.items():
                for a, b in zip(floats(tensor), floats(one[name])):
                    self.assertAlmostEqual(a, b, delta=abs(a) * 2**-7)

    def test_values_are_sane(self):
        config, tensors = self.model("sane", "custom", "--family", "llama", "--context", "128", *SMALL)
        self.assertEqual(config["model_type"], "llama")
        for name, tensor in tensors.items():
            values = floats(tensor)
            self.assertTrue(all(math.isfinite(v) for v in values), name)
            if len(tensor[1]) == 1:
                self.assertEqual(set(values), {1.0}, name)
                continue
            std = math.sqrt(sum(v * v for v in values) / len(values))
            self.assertTrue(0.3 < std * math.sqrt(tensor[1][1]) < 2, (name, std))

    def test_a_perturbed_model_differs_by_little(self):
        _, base = self.model("base", "tiny", *SMALL, "--dtype", "f32")
        _, moved = self.model("moved", "tiny", *SMALL, "--dtype", "f32", "--perturb", "3:0.01")
        for name, tensor in base.items():
            a, b = floats(tensor), floats(moved[name])
            self.assertNotEqual(a, b, name)
            self.assertTrue(all(abs(x - y) < 0.05 for x, y in zip(a, b)), name)

    def test_bad_input_is_refused_by_name(self):
        for args, what in (
            (("nosuch",), "nosuch"),
            (("custom",), "--vocab"),
            (("tiny", "--vocab", "100"), "--vocab is 100"),
            (("tiny", "--heads", "3"), "--kv-heads"),
            (("tiny", "--dtype", "int8"), "int8"),
            (("tiny", "--shards", "0"), "0 shards"),
            (("tiny", "--shards", "999"), "999 shards"),
            (("tiny", "--perturb", "1"), "SEED:SCALE"),
            (("tiny", "--tied", "--untied"), "--untied"),
            (("qwen2.5-0.5b", "--head-dim", "32"), "--head-dim"),
        ):
            with self.subTest(args=args):
                made = make(os.path.join(self.root.name, "bad"), *args)
                self.assertNotEqual(made.returncode, 0)
                self.assertIn(what, made.stderr)

    def test_a_directory_in_use_is_refused(self):
        with open(os.path.join(self.root.name, "mine"), "w") as file:
            file.write("x")
        made = make(self.root.name, "tiny")
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("not an empty directory", made.stderr)
