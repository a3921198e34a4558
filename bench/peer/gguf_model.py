"""A checkpoint as llama.cpp reads it: gguf_model MODEL OUT.gguf, in the peers' environment.

Converts models of Qwen3, Qwen3-MoE and Qwen3.5 (dense, with as many value heads as key heads). Weights stay bf16;
norms, routers, convolutions and decay rates become fp32 (the forms are those of llama.cpp's own converter). There is no
vocabulary: prompts are token ids.
"""

from __future__ import annotations

import json
import pathlib
import re
import struct
import sys
from typing import Any, Iterator

import numpy


def tensors_of(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields names and tensors: the bits of BF16 as uint16, F32 as float32. Raises ValueError for another dtype."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r", offset=8 + size)
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] not in ("BF16", "F32"):
            raise ValueError(f"{name} is {tensor['dtype']}; BF16 and F32 are converted")
        begin, end = tensor["data_offsets"]
        bits = data[begin:end].view(numpy.uint16 if tensor["dtype"] == "BF16" else numpy.float32)
        yield name, bits.reshape(tensor["shape"])


def wide(tensor: Any) -> Any:
    """The tensor as float32."""
    return tensor if tensor.dtype == numpy.float32 else (tensor.astype(numpy.uint32) << 16).view(numpy.float32)


def fused(tensors: Iterator[tuple[str, Any]], num_experts: int) -> Iterator[tuple[str, Any]]:
    """Yields the same tensors, with each layer's experts joined into one tensor per projection, [experts, rows, cols]."""
    parts: dict[str, dict[int, Any]] = {}
    for name, tensor in tensors:
        found = re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)\.weight", name)
        if not found:
            yield name, tensor
            continue
        whole = f"{found[1]}.{found[3]}.weight"
        parts.setdefault(whole, {})[int(found[2])] = tensor
        if len(parts[whole]) == num_experts:
            experts = parts.pop(whole)
            yield whole, numpy.stack([experts[number] for number in range(num_experts)])


def add_delta_nets(writer: Any, config: dict[str, Any]) -> None:
    """The keys of gated delta nets. Raises ValueError where llama.cpp would want the value heads in another order."""
    heads, head_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    if heads != config["linear_num_key_heads"]:
        raise ValueError("a model with more value heads than key heads is not converted")
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(head_dim * heads)
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([11, 11, 10, 0])  # interleaved mrope; in text, all sections have equal positions


def of_delta_net(name: str, tensor: Any) -> tuple[str, Any]:
    """Converts a tensor of a Qwen3.5's gated delta net to llama.cpp's name and form."""
    if name.endswith(".A_log"):
        return name, -numpy.exp(wide(tensor))
    if name.endswith(".dt_bias"):
        return name.removesuffix(".dt_bias") + ".dt_proj.bias", wide(tensor)
    if name.endswith(".conv1d.weight"):
        return name, wide(tensor).reshape(tensor.shape[0], tensor.shape[-1])
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return name, wide(tensor) + 1
    return name, tensor


def convert(model: pathlib.Path, out: pathlib.Path) -> None:
    import gguf

    config = json.loads((model / "config.json").read_text())
    family = config["model_type"]
    archs = {
        "qwen3": gguf.MODEL_ARCH.QWEN3, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    }  # fmt: skip
    if family not in archs:
        raise ValueError(f"{model} is a {family} model; {', '.join(archs)} are converted")
    layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(archs[family], layers)
    writer = gguf.GGUFWriter(str(out), gguf.MODEL_ARCH_NAMES[archs[family]])
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    if family == "qwen3_moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if family == "qwen3_5_text":
        add_delta_nets(writer, config)
    for path in sorted(model.glob("*.safetensors")):
        for name, tensor in fused(tensors_of(path), config.get("num_experts", 0)):
            if family == "qwen3_5_text":
                name, tensor = of_delta_net(name, tensor)
            there = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if there is None:
                raise ValueError(f"llama.cpp has no tensor for {name}")
            if tensor.ndim == 1 or tensor.dtype == numpy.float32 or name.endswith(".mlp.gate.weight"):
                writer.add_tensor(there, numpy.ascontiguousarray(wide(tensor)))
            else:
                bits = numpy.ascontiguousarray(tensor)
                writer.add_tensor(there, bits.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
