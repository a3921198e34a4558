"""A PEFT adapter of a Qwen3 as llama.cpp reads it: gguf_adapter MODEL DIR OUT.gguf, in the peers' environment.

The names, keys and shapes are those that llama.cpp's own converter of adapters writes; the weights keep their dtype.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy
from bench.peer.gguf_model import tensors_of


def convert(model: pathlib.Path, adapter: pathlib.Path, out: pathlib.Path) -> None:
    import gguf

    config = json.loads((model / "config.json").read_text())
    if config["model_type"] != "qwen3":
        raise ValueError(f"{model} is a {config['model_type']} model; adapters of qwen3 are converted")
    described = json.loads((adapter / "adapter_config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(str(out), gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN3])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(described["lora_alpha"]))
    for name, tensor in tensors_of(adapter / "adapter_model.safetensors"):
        module, _, part = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        base = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        if base is None:
            raise ValueError(f"llama.cpp has no tensor for {name}")
        bits = numpy.ascontiguousarray(tensor)
        if tensor.dtype == numpy.float32:
            writer.add_tensor(f"{base}.{part.lower()}", bits)
        else:
            writer.add_tensor(
                f"{base}.{part.lower()}", bits.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(*(pathlib.Path(path) for path in sys.argv[1:4]))
