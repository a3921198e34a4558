"""The packages of trainers, pinned, each in an environment of its own under build/trainers.

They are made when a test first needs them and kept; without a package index their tests skip by
name. All share one PyTorch: its packages take minutes to install, the others seconds. If PyTorch
cannot be installed, one environment has the packages that work without it.
"""

import dataclasses
import fcntl
import functools
import os
import pathlib
import subprocess
import sys

import pytest

PROMPT = "ROMEO:\n"
NUM_TOKENS = 24
ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = pathlib.Path(os.environ.get("PITSTOP_TRAINERS", ROOT / "build" / "trainers"))
INSTALL_S = 900
TORCH = ("torch==2.15.0", "numpy==2.4.6")


@dataclasses.dataclass(frozen=True)
class Environment:
    packages: tuple = ()  # with their dependencies
    alone: tuple = ()  # without dependencies: the trainer's package, whose dependencies are for GPUs
    needs_torch: bool = True
    is_nightly: bool = False  # heavy: only where PITSTOP_TRAINERS_ALL is set


HTTP = ("aiohttp==3.14.5", "requests==2.34.2", "pydantic==2.14.3", "pyzmq==27.3.0", "msgpack")
HF = ("transformers==5.23.0", "accelerate==1.15.0", "safetensors==0.8.0")
WEB = ("fastapi==0.165.0", "uvicorn==0.54.0", "orjson==3.13.0", "pybase64==1.5.1", "psutil==7.2.2")
LIGHT = "light"
ENVIRONMENTS = {
    "torch": Environment(TORCH, needs_torch=False, is_nightly=True),
    "openai": Environment(("openai==3.54.0",), needs_torch=False),
    "anthropic": Environment(("anthropic==2.12.0",), needs_torch=False),
    # Environments of agents. verifiers starts its programs with uv.
    "inspect": Environment(("inspect-ai==0.3.285", "openai==3.57.0"), needs_torch=False),
    "verifiers": Environment(("verifiers==0.4.0", "uv==0.13.9"), needs_torch=False),
    # SkyRL's agents; skyrl-gym has their environments, and needs pandas.
    "skyrl_gym": Environment(
        (
            *HTTP,
            "transformers==5.23.0",
            "jinja2==3.1.6",
            "loguru==0.7.3",
            "numpy==2.4.6",
            "omegaconf==2.3.1",
            "pandas==3.1.1",
            "skyrl-gym==0.4.0",
            "tqdm",
        ),
        ("skyrl==0.3.0",),
        needs_torch=False,
    ),
    "grpo": Environment(("pyzmq==27.3.0", "msgpack", "matplotlib"), is_nightly=True),
    "grpo_lora": Environment((*HF, "peft==0.21.2", "pyzmq==27.3.0", "msgpack", "matplotlib"), is_nightly=True),
    "hub": Environment(("huggingface_hub==2.4.0",), needs_torch=False),
    # Packages that work without PyTorch or with its replacement (without_torch), in one environment.
    LIGHT: Environment(
        (
            *HTTP,
            *WEB,
            "numpy==2.4.6",
            "transformers==5.23.0",
            "aiofiles==25.1.0",
            "colorlog==6.12.0",
            "einops==0.8.2",
            "httpx==0.28.1",
            "hydra-core==1.3.8",
            "interegular==0.3.3",
            "ipython==9.18.1",
            "jinja2==3.1.6",
            "json5==0.17.3",
            "lark==1.3.1",
            "loguru==0.7.3",
            "msgspec==0.22.0",
            "networkx==3.6.1",
            "omegaconf==2.3.1",
            "openai==3.54.0",
            "partial-json-parser==0.2.1.1.post7",
            "pillow==13.0.0",
            "prometheus-client==0.26.0",
            "python-multipart",
            "setproctitle==1.3.8",
            "tabulate==0.10.0",
            "tenacity==9.2.1",
            "tqdm",
            "uvloop==0.23.0",
        ),
        ("areal==1.0.4", "lm-eval==0.4.13", "sglang==0.5.23", "skyrl==0.3.0", "trl==1.16.0", "verl==0.9.1"),
        needs_torch=False,
    ),
    # For reading routed experts: a newer SkyRL than the one above, and the packages that slime imports.
    "skyrl_routes": Environment(
        (*HTTP, "numpy==2.4.6", "orjson==3.13.0", "pybase64==1.5.1", "loguru==0.7.3", "rich==15.0.0"),
        ("skyrl==0.4.0",),
        needs_torch=False,
    ),
    "slime_routes": Environment(("numpy==2.4.6", "pybase64==1.5.1", "httpx==0.28.1"), needs_torch=False),
    "trl": Environment((*HTTP, *HF), ("trl==1.16.0",), is_nightly=True),
    "skyrl": Environment((*HTTP, *HF, "loguru==0.7.3"), ("skyrl==0.3.0",), is_nightly=True),
    "sglang": Environment(
        (
            *HTTP,
            *HF,
            *WEB,
            "ipython==9.18.1",
            "msgspec==0.22.0",
            "partial-json-parser==0.2.1.1.post7",
            "pillow==13.0.0",
            "prometheus-client==0.26.0",
            "python-multipart",
            "setproctitle==1.3.8",
            "sentencepiece==0.2.3",
            "interegular==0.3.3",
            "uvloop==0.23.0",
        ),
        ("sglang==0.5.23",),
        is_nightly=True,
    ),
    "verl": Environment(HTTP, ("verl==0.9.1",), is_nightly=True),
    "areal": Environment(
        (
            *HTTP,
            *HF,
            *WEB,
            "aiofiles==25.1.0",
            "blosc==1.11.4",
            "colorlog==6.12.0",
            "datasets==5.2.0",
            "httpx==0.28.1",
            "einops==0.8.2",
            "flask==3.1.3",
            "h5py==3.16.0",
            "hydra-core==1.3.8",
            "json5==0.17.3",
            "lark==1.3.1",
            "networkx==3.6.1",
            "numba==0.68.1",
            "omegaconf==2.3.1",
            "openai==3.54.0",
            "pandas==3.1.1",
            "pebble==5.2.3",
            "pillow==13.0.0",
            "ray==2.60.0",
            "redis==8.1.0",
            "setproctitle==1.3.8",
            "tabulate==0.10.0",
            "tenacity==9.2.1",
            "torchdata==0.11.0",
            "uvloop==0.23.0",
            "zstandard==0.25.0",
        ),
        ("areal==1.0.4",),
        is_nightly=True,
    ),
    "checkpoint_engine": Environment(
        (*HTTP, *WEB, "loguru==0.7.3", "httpx==0.28.1", "safetensors==0.8.0"),
        ("checkpoint-engine==0.4.2",),
        is_nightly=True,
    ),
    # The integrations' base classes, and what verl imports before its base classes.
    "integrations": Environment(
        (
            *HTTP,
            *HF,
            "codetiming==1.4.0",
            "datasets==5.2.0",
            "hydra-core==1.3.8",
            "omegaconf==2.3.1",
            "ray==2.60.0",
            "tensordict==0.15.3",
            "torchdata==0.11.0",
            "orjson==3.13.0",
            "pylatexenc==2.11",
            "peft==0.21.2",
        ),
        ("verl==0.9.1", "openrlhf==0.11.2"),
        is_nightly=True,
    ),
}


# Packages that work with PyTorch's replacement (without_torch).
STAND_INS = (LIGHT, "skyrl_gym", "skyrl_routes", "slime_routes")


def _run(*command):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=INSTALL_S
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])


def _make(name, place):
    environment = ENVIRONMENTS[name]
    _run(sys.executable, "-m", "venv", "--clear", place)
    pip = [place / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile", "--retries", "1"]
    pip.append("--disable-pip-version-check")
    if environment.needs_torch:
        (torch,) = pathlib.Path(python_of("torch")).parents[1].glob("lib/python*/site-packages")
        (own,) = place.glob("lib/python*/site-packages")
        (own / "torch.pth").write_text(f"{torch}\n")
    if environment.packages:
        _run(*pip, *environment.packages)
    if environment.alone:
        _run(*pip, "--no-deps", "--ignore-requires-python", *environment.alone)


@functools.lru_cache(maxsize=None)
def python_of(name):
    """The interpreter of that environment. Skips if it cannot be made here, or is not wanted."""
    environment = ENVIRONMENTS[name]
    place = PLACE / name
    mark = place / "made"
    wanted = repr((environment, sys.version_info[:3]))
    PLACE.mkdir(parents=True, exist_ok=True)
    with open(PLACE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may share the directory
        if not (mark.exists() and mark.read_text() == wanted):
            if environment.is_nightly and not os.environ.get("PITSTOP_TRAINERS_ALL"):
                pytest.skip(f"{name} is heavy: its environment is made with PITSTOP_TRAINERS_ALL=1")
            try:
                _make(name, place)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"the packages of {name} cannot be installed here: {error}")
            mark.write_text(wanted)
    return str(place / "bin" / "python")
