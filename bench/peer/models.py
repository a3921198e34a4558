"""Makes the models of the comparison, each as a checkpoint for pitstop and as a GGUF file for llama.cpp."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

SHAPES = {
    "qwen3-0.6b": "Qwen3 0.6B",
    "qwen3.5-0.8b": "Qwen3.5 0.8B (a hybrid)",
    "experts-2b-a0.3b": "a Qwen3-MoE of 2.0 billion weights, 4 of 64 experts per token",
    "qwen3-0.6b-lora": "Qwen3 0.6B with one adapter (LoRA) of rank 16 on every projection, also bf16, for all requests",
}
LORA = "-lora"
LORA_RANK = 16


@dataclasses.dataclass(frozen=True)
class Made:
    """The files of a model. The GGUF files exist only if llama.cpp is compared."""

    model: pathlib.Path  # a directory
    gguf: pathlib.Path
    adapter: pathlib.Path | None = None  # a directory
    adapter_gguf: pathlib.Path | None = None


def make(shape: str, directory: pathlib.Path, build: pathlib.Path, python: pathlib.Path | None) -> Made:
    """Makes the files that do not exist.

    `python` is the interpreter of the peers' environment. With None, no GGUF file is made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    base = shape.removesuffix(LORA)
    model, gguf = directory / base, directory / f"{base}.gguf"
    if not (model / "config.json").exists():
        subprocess.run([str(build / "bin/pitstop_make_model"), base, str(model)], check=True)
    _make_once(python, "gguf_model", [model], gguf)
    if base == shape:
        return Made(model, gguf)
    adapter, adapter_gguf = directory / shape, directory / f"{shape}.gguf"
    _make_once(python or pathlib.Path(sys.executable), "adapter_files", [model], adapter, str(LORA_RANK))
    _make_once(python, "gguf_adapter", [model, adapter], adapter_gguf)
    return Made(model, gguf, adapter, adapter_gguf)


def _make_once(
    python: pathlib.Path | None, program: str, sources: list[pathlib.Path], made: pathlib.Path, *more: str
) -> None:
    """Runs bench.peer.PROGRAM SOURCES MADE MORE with this interpreter, unless `made` exists or the interpreter is None."""
    if python is None or made.exists():
        return
    part = made.with_name(made.name + ".part")
    command = [str(python), "-m", f"bench.peer.{program}", *map(str, sources), str(part), *more]
    subprocess.run(command, cwd=ROOT, check=True)
    part.rename(made)
