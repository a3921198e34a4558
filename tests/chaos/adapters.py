"""Adapters (LoRA): their files, their versions, and which version a request may report.

A name gets one content after another, and names are loaded and unloaded. A stale version, another version's KV and the
model alone all give another distribution, which the oracle notices.
"""

import json
import pathlib
import threading

import numpy

from . import weights

NAMES = ("policy", "critic", "draft")
NUM_CONTENTS = 3
SHARE = 0.45  # the share of requests that ask for an adapter, among clients whose answers name it
THERE = 0.8  # of these requests, the share whose adapter the last status showed as loaded
SIZE = 0.5  # size of an adapter's change of a weight, in standard deviations of that weight
ONE_LIFE = 1 << 20  # version numbers of two lives of a tree differ by more than this, except by chance

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
LINEAR = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")


def modules_of(config):
    """Names of the modules that may be adapted."""
    mlp = () if weights.num_experts(config) else MLP  # MLP's names would match modules of experts, too
    return ATTENTION + mlp + (LINEAR if weights.is_hybrid(config) else ())


def make(config, tensors, rng, is_whole):
    """(adapter_config.json as an object, {name: float32}); `is_whole`: all modules are adapted, else some."""
    names = modules_of(config)
    if not is_whole:
        names = [str(each) for each in rng.choice(names, 2, replace=False)]
    rank, alpha = int(rng.choice((1, 3, 8))), int(rng.choice((2, 16)))
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": sorted(names), "bias": "none"}
    if rng.random() < 0.5:
        described["use_rslora"] = True
    adapter = {}
    for name, bits in tensors.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in names or not module.startswith("model.layers."):
            continue
        num_out, num_in = bits.shape
        size = SIZE * float(weights.from_bf16(bits).std()) / (scale_of(described) * numpy.sqrt(rank))
        adapter[f"{module}.lora_A.weight"] = rng.normal(0.0, 1.0, (rank, num_in)).astype(numpy.float32)
        adapter[f"{module}.lora_B.weight"] = rng.normal(0.0, size, (num_out, rank)).astype(numpy.float32)
    return described, adapter


def scale_of(described):
    root = numpy.sqrt(described["r"]) if described.get("use_rslora") else described["r"]
    return float(described["lora_alpha"] / root)


def write(directory, described, adapter):
    """Writes a directory as PEFT's save_pretrained does."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(described))
    prefixed = {f"base_model.model.{name}": tensor for name, tensor in adapter.items()}
    weights.write_safetensors(directory / "adapter_model.safetensors", prefixed)


def digest_of(adapter):
    digests = {name: weights.tensor_digest(name, tensor) for name, tensor in adapter.items()}
    return weights.version_digest({name: tensor.shape for name, tensor in adapter.items()}, digests)


def pairs_of(described, adapter, dtype):
    """An adapter's {name of the adapted weight: (A transposed, B transposed and scaled)}"""
    pairs, tail = {}, ".lora_A.weight"
    for name, a in adapter.items():
        if name.endswith(tail):
            module = name.removesuffix(tail)
            b = adapter[f"{module}.lora_B.weight"].astype(dtype) * dtype(scale_of(described))
            pairs[f"{module}.weight"] = a.astype(dtype).T, b.T
    return pairs


def load(directory, digest):
    """(an adapter's description, its tensors), for a verifier or a trainer. KeyError: unknown adapter."""
    try:
        with numpy.load(pathlib.Path(directory) / f"adapter-{digest}.npz") as tensors:
            adapter = dict(tensors)
        return json.loads((pathlib.Path(directory) / f"adapter-{digest}.json").read_text()), adapter
    except FileNotFoundError:
        raise KeyError(digest) from None


class AdapterBook:
    """The adapters that exist, the versions that were seen, and those that a request may still get.
    Thread: any.
    """

    def __init__(self, directory, config, tensors, rng):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir()
        self.contents = []  # (directory of the files, digest)
        self.whole = []  # (description, tensors)
        self._lock = threading.Lock()
        self._versions = {}  # version -> (name, digest)
        self._floors = {}  # name -> the oldest version that a new request may get
        self._there = []  # names in the last status
        for number in range(NUM_CONTENTS):
            described, adapter = make(config, tensors, rng, is_whole=number == 0)
            digest, files = digest_of(adapter), self.directory / str(number)
            write(files, described, adapter)
            numpy.savez(self.directory / f"adapter-{digest}.npz", **adapter)
            (self.directory / f"adapter-{digest}.json").write_text(json.dumps(described))
            self.contents.append((files, digest))
            self.whole.append((described, adapter))

    def choose(self, rng):
        """The name that this request asks for, or empty."""
        if rng.random() >= SHARE:
            return ""
        with self._lock:
            there = list(self._there)
        return rng.choice(there if there and rng.random() < THERE else NAMES)

    def is_there(self, names):
        """Notes the loaded names of a status."""
        with self._lock:
            self._there = sorted(names)

    def floor(self, name):
        """The oldest version that a request which begins now may get."""
        with self._lock:
            return self._floors.get(name, 0)

    def loaded(self, name, version):
        """A trainer was told of a new version: no later request gets an older one."""
        self._raise(name, version)

    def unloaded(self, name, version):
        """A trainer was told that the name is unloaded: no later request gets it."""
        self._raise(name, version + 1)

    def _raise(self, name, floor):
        with self._lock:
            known = self._floors.get(name, 0)
            if floor > known or known - floor > ONE_LIFE:
                self._floors[name] = floor

    def see(self, name, version, digest):
        """The error in a version that an answer names, or None. A version has one name and one content for ever."""
        if digest not in [each for _, each in self.contents]:
            return f"version {version} of adapter '{name}' is {digest}, which nobody sent"
        with self._lock:
            known = self._versions.setdefault(version, (name, digest))
        return None if known == (name, digest) else f"version {version} was {known} and is now {name, digest}"

    def problem_of(self, record):
        """The error in the adapter that a record's last chunk names, or None."""
        if (record.adapter_name or None) != (record.adapter and record.adapter[0]):
            return f"it asked for adapter '{record.adapter_name}', and says that it had {record.adapter}"
        if record.adapter is None:
            return None
        wrong = self.see(*record.adapter)
        version = record.adapter[1]
        if wrong is None and record.adapter_floor - ONE_LIFE < version < record.adapter_floor:
            wrong = f"version {version}, and {record.adapter_floor} was the oldest for new requests when it began"
        return wrong
