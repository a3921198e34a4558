"""Checkpoints as the oracle has them: read, written, digested, made at random.

bfloat16 is held as its uint16 bits. Everything here follows docs/design.md (section 5) and the
format of safetensors; nothing is the engine's or the client's code.
"""

import json
import pathlib
import shutil
import struct

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "launch" / "models"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
ODD = numpy.uint64(0x9E3779B97F4A7C15)


def to_bf16(values):
    """float32 to the nearest bfloat16, ties to even. Finite values."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def from_bf16(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def _mix64(z):
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def _digest_rows(rows):
    """`rows`: [n, bytes] of uint8. 32 hex digits."""
    padding = -rows.shape[1] % 8
    if padding:
        rows = numpy.pad(rows, ((0, 0), (0, padding)))
    words = numpy.ascontiguousarray(rows).view("<u8").reshape(-1)
    with numpy.errstate(over="ignore"):
        mixed = _mix64(words + numpy.arange(1, len(words) + 1, dtype=numpy.uint64) * ODD)
        high, low = mixed >> numpy.uint64(32), mixed & numpy.uint64(0xFFFFFFFF)
        return f"{int(mixed.sum(dtype=numpy.uint64)):016x}{int((high * low).sum(dtype=numpy.uint64)):016x}"


def tensor_digest(bits):
    return _digest_rows(bits.reshape(-1, bits.shape[-1]).view(numpy.uint8))


def version_digest(shapes, digests):
    """Of a whole version, from its tensors' shapes and digests by name."""
    lines = [f"{name} BF16 {'x'.join(map(str, shapes[name]))} {digests[name]}\n" for name in sorted(digests)]
    return _digest_rows(numpy.frombuffer("".join(lines).encode(), numpy.uint8).reshape(1, -1))


def read_checkpoint(directory):
    """{name: uint16 array} of a directory's model.safetensors."""
    blob = (pathlib.Path(directory) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: numpy.frombuffer(
            blob,
            numpy.uint16,
            (entry["data_offsets"][1] - entry["data_offsets"][0]) // 2,
            8 + length + entry["data_offsets"][0],
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }


def write_checkpoint(directory, tensors, like):
    """A directory with these tensors; configuration and tokenizer are those of `like`."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", *TOKENIZER_FILES):
        if not (directory / name).exists():
            shutil.copy(pathlib.Path(like) / name, directory / name)
    write_safetensors(directory / "model.safetensors", tensors)


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


def tiny_config(vocab_size=2048):
    """A shape that tp 2 divides: few products, so that one core verifies thousands of tokens a second."""
    config = json.loads((MODELS / "stories" / "config.json").read_text())
    config.update(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=vocab_size,
        tie_word_embeddings=False,
        max_window_layers=3,
    )
    return config


def tiny_experts_config(vocab_size=2048):
    """The same with experts in the first and the last layer; the weights of the chosen ones do not add up to 1."""
    return {
        **tiny_config(vocab_size),
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "moe_intermediate_size": 48,
        "norm_topk_prob": False,
        "num_experts": 7,
        "num_experts_per_tok": 3,
    }


def num_experts(config):
    return config.get("num_experts") or config.get("num_local_experts") or 0


def layers_with_experts(config):
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    layers = range(config["num_hidden_layers"]) if num_experts(config) else ()
    return [layer for layer in layers if layer not in dense and (layer + 1) % step == 0]


def shapes_of(config):
    """{name: shape} of a checkpoint of Qwen3 or Qwen3-MoE."""
    H, F, D = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    Q, K, V = config["num_attention_heads"] * D, config["num_key_value_heads"] * D, config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (V, H)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes.update(
            {
                at + "input_layernorm.weight": (H,),
                at + "post_attention_layernorm.weight": (H,),
                at + "self_attn.q_proj.weight": (Q, H),
                at + "self_attn.k_proj.weight": (K, H),
                at + "self_attn.v_proj.weight": (K, H),
                at + "self_attn.o_proj.weight": (H, Q),
                at + "self_attn.q_norm.weight": (D,),
                at + "self_attn.k_norm.weight": (D,),
            }
        )
        mlps = {"mlp.": F}
        if layer in layers_with_experts(config):
            shapes[at + "mlp.gate.weight"] = (num_experts(config), H)
            mlps = {f"mlp.experts.{e}.": config["moe_intermediate_size"] for e in range(num_experts(config))}
        for mlp, width in mlps.items():
            shapes[at + mlp + "gate_proj.weight"] = shapes[at + mlp + "up_proj.weight"] = (width, H)
            shapes[at + mlp + "down_proj.weight"] = (H, width)
    return shapes


def random_tensors(config, rng):
    """Weights that make far from uniform, far from certain distributions, in which each layer and
    each KV entry counts: another version's are seen in the first token."""
    tensors = {}
    for name, shape in shapes_of(config).items():
        if len(shape) == 1:
            values = rng.uniform(0.6, 1.4, shape)
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            values = rng.normal(0.0, 0.3, shape)
        elif name.endswith("mlp.gate.weight"):  # routers that prefer some experts by far
            values = rng.normal(0.0, 2.0 / numpy.sqrt(shape[1]), shape)
        else:
            values = rng.normal(0.0, 0.8 / numpy.sqrt(shape[1]), shape)
        tensors[name] = to_bf16(values.astype(numpy.float32))
    return tensors


def make_model(directory, config, rng):
    """A model directory of random weights. Returns its tensors."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = random_tensors(config, rng)
    write_checkpoint(directory, tensors, MODELS / "stories")
    return tensors
