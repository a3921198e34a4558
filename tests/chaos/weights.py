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
    """`rows`: [n, bytes] of uint8. Returns 32 hex digits."""
    padding = -rows.shape[1] % 8
    if padding:
        rows = numpy.pad(rows, ((0, 0), (0, padding)))
    words = numpy.ascontiguousarray(rows).view("<u8").reshape(-1)
    with numpy.errstate(over="ignore"):
        mixed = _mix64(words + numpy.arange(1, len(words) + 1, dtype=numpy.uint64) * ODD)
        high, low = mixed >> numpy.uint64(32), mixed & numpy.uint64(0xFFFFFFFF)
        return f"{int(mixed.sum(dtype=numpy.uint64)):016x}{int((high * low).sum(dtype=numpy.uint64)):016x}"


def _is_fp32(name):
    """Whether the engine keeps this tensor in fp32, although the model's is sent as bf16."""
    return name.endswith(".A_log") or ".lora_" in name


def tensor_digest(name, bits):
    """The digest of a tensor in its resident form."""
    resident = from_bf16(bits) if _is_fp32(name) and bits.dtype == numpy.uint16 else bits
    return _digest_rows(resident.reshape(-1, bits.shape[-1]).view(numpy.uint8))


def version_digest(shapes, digests):
    """The digest of a whole version, from its tensors' shapes and digests by name."""
    lines = [
        f"{name} {'F32' if _is_fp32(name) else 'BF16'} {'x'.join(map(str, shapes[name]))} {digests[name]}\n"
        for name in sorted(digests)
    ]
    return _digest_rows(numpy.frombuffer("".join(lines).encode(), numpy.uint8).reshape(1, -1))


def _read_safetensors(path, dtype):
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: numpy.frombuffer(
            blob,
            dtype,
            (entry["data_offsets"][1] - entry["data_offsets"][0]) // numpy.dtype(dtype).itemsize,
            8 + length + entry["data_offsets"][0],
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }


def read_checkpoint(directory):
    """{name: uint16 array} of a directory's model.safetensors."""
    return _read_safetensors(pathlib.Path(directory) / "model.safetensors", numpy.uint16)


def read_adapter(directory):
    """{name: float32 array} of a directory's adapter_model.safetensors, names as the engine has them."""
    tensors = _read_safetensors(pathlib.Path(directory) / "adapter_model.safetensors", numpy.float32)
    return {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}


def write_checkpoint(directory, tensors, like):
    """Writes a directory with these tensors; configuration and tokenizer are those of `like`."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", *TOKENIZER_FILES):
        if not (directory / name).exists():
            shutil.copy(pathlib.Path(like) / name, directory / name)
    write_safetensors(directory / "model.safetensors", tensors)


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, bits in tensors.items():
        dtype = "F32" if bits.dtype == numpy.float32 else "BF16"
        header[name] = {"dtype": dtype, "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


def tiny_config(vocab_size=2048):
    """A shape that tp 2 divides: small products, so that one core verifies thousands of tokens a second."""
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
    """tiny_config() with experts in the first and the last layer; the weights of a token's experts do
    not add up to 1.
    """
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


def tiny_hybrid_config(vocab_size=2048):
    """tiny_config() with gated delta nets in the first and the last layer, and gated attention between them. The norm
    behind a recurrence divides by a number that may be near zero. With an eps of 1e-6 the division sometimes multiplies
    a rounding error by a thousand. A tolerance derived from some tokens would not hold for others.
    """
    config = {key: each for key, each in tiny_config(vocab_size).items() if key not in ("rope_theta", "rope_scaling")}
    return {
        **config,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 24,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    }


def is_hybrid(config):
    return config["model_type"].startswith("qwen3_5")


def is_linear(config, layer):
    """Whether a layer has a gated delta net instead of attention."""
    return is_hybrid(config) and config["layer_types"][layer] == "linear_attention"


def num_experts(config):
    return config.get("num_experts") or config.get("num_local_experts") or 0


def layers_with_experts(config):
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    layers = range(config["num_hidden_layers"]) if num_experts(config) else ()
    return [layer for layer in layers if layer not in dense and (layer + 1) % step == 0]


def shapes_of(config):
    """{name: shape} of a checkpoint of Qwen3, Qwen3-MoE or Qwen3.5."""
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
            }
        )
        if is_linear(config, layer):
            shapes.update({f"{at}linear_attn.{tail}": shape for tail, shape in _delta_shapes(config).items()})
        else:
            shapes.update(
                {
                    at + "self_attn.q_proj.weight": (2 * Q if is_hybrid(config) else Q, H),
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


def _delta_shapes(config):
    H, num_v, dv = config["hidden_size"], config["linear_num_value_heads"], config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + num_v * dv
    return {
        "in_proj_qkv.weight": (channels, H),
        "in_proj_z.weight": (num_v * dv, H),
        "in_proj_b.weight": (num_v, H),
        "in_proj_a.weight": (num_v, H),
        "conv1d.weight": (channels, 1, config["linear_conv_kernel_dim"]),
        "A_log": (num_v,),
        "dt_bias": (num_v,),
        "norm.weight": (dv,),
        "out_proj.weight": (H, num_v * dv),
    }


def random_tensors(config, rng):
    """Random weights whose distributions are neither uniform nor certain. Each layer and each KV entry matters, so the
    first token of another version is noticed."""
    tensors = {}
    for name, shape in shapes_of(config).items():
        if name.endswith((".A_log", ".dt_bias")):  # a state then forgets within a few to some hundred tokens
            values = rng.uniform(-3.0, 0.0, shape)
        elif len(shape) == 1:
            is_around_zero = is_hybrid(config) and ".linear_attn." not in name
            values = rng.uniform(0.6, 1.4, shape) - is_around_zero
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            values = rng.normal(0.0, 0.3, shape)
        elif name.endswith("mlp.gate.weight"):  # routers that prefer some experts by far
            values = rng.normal(0.0, 2.0 / numpy.sqrt(shape[1]), shape)
        else:
            values = rng.normal(0.0, 0.8 / numpy.sqrt(shape[-1]), shape)
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
