"""The pairs of models that suites run on: both of one shape, so that one can replace the other.

A module that imports `pair` and `shared_tree` runs once per pair."""

import dataclasses
import json
import sys

import pytest

from hybrid_model import tensors, write_hybrid
from places import short_directory
from process_tree import ROOT, live_tree

sys.path.insert(0, str(ROOT / "tests"))
from chaos import weights  # noqa: E402  (after the path)


@dataclasses.dataclass(frozen=True)
class Pair:
    old: str  # the directory that trees begin with
    new: str
    old_digest: str
    new_digest: str
    old_tensors: dict  # name -> digest
    new_tensors: dict


def _bundled(old, new):
    models = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
    return Pair(
        *(str(ROOT / "launch/models" / name) for name in (old, new)),
        *(models[name]["digest"] for name in (old, new)),
        *(models[name]["tensors"] for name in (old, new)),
    )


def hybrid_pair(place):
    """A pair with random weights and a recurrent state in most layers."""
    directories, wholes, parts = [], [], []
    for number, name in enumerate(("old", "new"), start=1):
        made = tensors(number)
        directories.append(str(write_hybrid(place / name, made)))
        parts.append({each: weights.tensor_digest(each, array) for each, array in made.items()})
        wholes.append(weights.version_digest({each: array.shape for each, array in made.items()}, parts[-1]))
    return Pair(*directories, *wholes, *parts)


DENSE = _bundled("stories", "bard")


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def pair(request, tmp_path_factory):
    return DENSE if request.param == "dense" else hybrid_pair(tmp_path_factory.mktemp("hybrids"))


@pytest.fixture(scope="module")
def shared_tree(request, pair):
    """conftest's fixture of this name, for the pair's old model."""
    flags = ("--model", pair.old, *getattr(request.module, "TREE_FLAGS", ()))
    with short_directory() as path, live_tree(path / "tree", *flags) as tree:
        yield tree
