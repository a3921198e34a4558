"""Checks a model's directory for common mistakes before anything starts; the errors say what to do.

The processes decide whether the model can be served; this check prints one line where they would print several.
"""

import json
import pathlib

from problem import EXIT_START, Problem

LFS = b"version https://git-lfs"
PICKLES = "pickled weights are not supported; save the model again with save_pretrained(..., safe_serialization=True)"


def _names(directory, pattern):
    return sorted(path.name for path in directory.glob(pattern))


def _instead_of_weights(directory):
    """Describes what the directory has instead of safetensors; empty if it has nothing that is known."""
    if found := _names(directory, "*.gguf"):
        return f"it contains {found[0]}: GGUF is not supported; use the safetensors that it was made from"
    if (directory / "adapter_config.json").exists():
        try:
            base = json.loads((directory / "adapter_config.json").read_text()).get("base_model_name_or_path", "")
        except (OSError, ValueError, AttributeError):
            base = ""
        of = f" of {base}" if base else ""
        return f"it contains an adapter{of}; serve its model, and then load it with load-adapter NAME {directory}"
    if found := _names(directory, "pytorch_model*.bin") or _names(directory, "*.pth") or _names(directory, "*.pt"):
        return f"it contains {found[0]}: {PICKLES}"
    return ""


def _instead_of_tokenizer(directory):
    if (directory / "tokenizer.model").exists():
        return (
            "it has tokenizer.model and no tokenizer.json; save a fast tokenizer: "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    if (directory / "vocab.json").exists():
        return (
            "it has vocab.json and no tokenizer.json; save a fast tokenizer: "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    return ""


def _lfs_pointer(directory):
    for pattern in ("*.safetensors", "*.json"):
        for path in sorted(directory.glob(pattern)):
            try:
                with open(path, "rb") as file:
                    if file.read(len(LFS)) == LFS:
                        return path.name
            except OSError:
                continue
    return ""


def _has_weights(directory):
    return any((directory / name).exists() for name in ("model.safetensors", "model.safetensors.index.json"))


def check(directory, needs_weights):
    """Problem: the directory is of a kind that cannot be served."""
    directory = pathlib.Path(directory)
    if pointer := _lfs_pointer(directory):
        line = f"{pointer} is a git-lfs pointer, not the file itself; `git lfs pull` in {directory} fetches it"
        raise Problem(f"--model {directory}: {line}", EXIT_START)
    if needs_weights and not _has_weights(directory):
        if why := _instead_of_weights(directory):
            raise Problem(f"--model {directory}: {why}", EXIT_START)
    if not (directory / "tokenizer.json").exists():
        if why := _instead_of_tokenizer(directory):
            raise Problem(f"--model {directory}: {why}", EXIT_START)
