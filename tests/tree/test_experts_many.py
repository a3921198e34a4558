"""A model with the names and counts of Qwen3-30B-A3B: 18,867 tensors, from each kind of source."""

import json
import sys

import pytest

from expert_model import NARROW, NUM_REAL_TENSORS, REAL, real_names, write_experts
from process_tree import ROOT
from weights_sources import digest_of, raw_source

sys.path.insert(0, str(ROOT / "tests/golden"))
import pitstop
from make_digests import model as digests_of  # noqa: E402  (after the path)
from pitstop.push import WeightPusher

BUCKET = 4_000
STATUS_BYTES_MAX = 64 << 10  # whatever the number of tensors


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    keys = {**REAL, **NARROW, "tie_word_embeddings": False}
    return [write_experts(place / str(seed), real_names(seed), **keys) for seed in (1, 2)]


def in_one_call(client, tensors, directory):
    return client.update_weights(source=raw_source(tensors))


def in_buckets(client, tensors, directory):
    session = client.begin_update()["session"]
    items = list(tensors.items())
    for begin in range(0, len(items), BUCKET):
        client.update_bucket(raw_source(dict(items[begin : begin + BUCKET])), session)
    return client.commit_weights(session=session)


def pushed(client, tensors, directory):
    WeightPusher(client, bucket_bytes=4_000_000).push(tensors)


def from_disk(client, tensors, directory):
    return client.update_weights(str(directory))


@pytest.mark.parametrize("ep", [1, 2])
def test_P2_every_way_brings_all_tensors(models, start_tree, ep):
    old, new = models
    tensors = real_names(2)
    assert len(tensors) == NUM_REAL_TENSORS
    before, expected = digests_of(old)["digest"], digests_of(new)["digest"]
    tree = start_tree("--model", old, "--tp", 2, "--ep", ep)
    with pitstop.Client(tree.run_dir) as client:
        for way in (in_one_call, in_buckets, pushed, from_disk):
            assert digest_of(client) == before, way
            way(client, tensors, new)
            assert digest_of(client) == expected, way
            assert len(json.dumps(client.status())) < STATUS_BYTES_MAX
            client.rollback_weights()
    with tree.door() as door:
        output = door.generate("Once upon a time", max_new_tokens=16, temperature=0.0, ignore_eos=True)
        assert len(output.tokens) == 16
