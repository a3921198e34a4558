"""A Qwen3 checkpoint as llama.cpp reads it: gguf_model MODEL OUT.gguf, in the peers' environment.

The weights stay bf16, norms become fp32 as llama.cpp wants them. There is no vocabulary: prompts are token ids.
"""

from __future__ import annotations

import json
import pathlib
import struct
import sys
from typing import Any, Iterator

import numpy


def tensors_of(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields names and their bf16 bits, [rows, cols] or [cols], as uint16. Raises ValueError for another dtype."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r", offset=8 + size)
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "BF16":
            raise ValueError(f"{name} is {tensor['dtype']}; only BF16 is converted")
        begin, end = tensor["data_offsets"]
        yield name, data[begin:end].view(numpy.uint16).reshape(tensor["shape"])


def convert(model: pathlib.Path, out: pathlib.Path) -> None:
    import gguf

    config = json.loads((model / "config.json").read_text())
    if config["model_type"] != "qwen3":
        raise ValueError(f"{model} is a {config['model_type']} model; only qwen3 is converted")
    layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    writer = gguf.GGUFWriter(str(out), "qwen3")
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
    for path in sorted(model.glob("*.safetensors")):
        for name, bits in tensors_of(path):
            there = names.get_name(name, try_suffixes=(".weight",))
            if there is None:
                raise ValueError(f"llama.cpp has no tensor for {name}")
            if bits.ndim == 1:
                writer.add_tensor(there, (bits.astype(numpy.uint32) << 16).view(numpy.float32))
            else:
                writer.add_tensor(there, bits.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
