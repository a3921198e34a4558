"""Makes the models of the comparison, each as a checkpoint for pitstop and as a GGUF file for llama.cpp."""

from __future__ import annotations

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

SHAPES = {
    "qwen3-0.6b": "Qwen3 0.6B",
    "qwen3.5-0.8b": "Qwen3.5 0.8B (a hybrid)",
    "experts-2b-a0.3b": "a Qwen3-MoE of 2.0 billion weights, 4 of 64 experts per token",
}


def make(
    shape: str, directory: pathlib.Path, build: pathlib.Path, python: pathlib.Path | None
) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the model's directory and the path of its GGUF file. Makes whichever does not exist.

    `python` is the interpreter of the peers' environment. With None, no GGUF file is made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    model, gguf = directory / shape, directory / f"{shape}.gguf"
    if not (model / "config.json").exists():
        subprocess.run([str(build / "bin/pitstop_make_model"), shape, str(model)], check=True)
    if python is not None and not gguf.exists():
        part = gguf.with_suffix(".part")
        subprocess.run([str(python), "-m", "bench.peer.gguf_model", str(model), str(part)], cwd=ROOT, check=True)
        part.rename(gguf)
    return model, gguf
