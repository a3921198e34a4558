"""Updates that begin with a version of an adapter, from every kind of source: a rollback to the previous version,
partial and sparse updates.
"""

import json
import pickle
import sys

import numpy
import pytest

from adapter_loads import PROMPT, source_of, tokens_with
from lora_files import config_of, exact_adapter, write_adapter
from process_tree import ROOT, run
from test_updates import GREEDY, LONG
from wire import Refused

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)
from pitstop.digests import tensor_digest  # noqa: E402
from pitstop.push import WeightPusher  # noqa: E402

NAME = "policy"
FIRST, SECOND = (exact_adapter(seed)[0] for seed in (1, 2))
PART = [name for name in FIRST if ".layers.0." in name and ".mlp." in name]
MIXED = {name: (SECOND if name in PART else FIRST)[name] for name in FIRST}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    contents = {"first": FIRST, "second": SECOND, "mixed": MIXED}
    return {name: write_adapter(place / name, tensors) for name, tensors in contents.items()}


@pytest.fixture
def client(shared_tree):
    with pitstop.Client(shared_tree.run_dir) as client:
        yield client
        for each in client.status()["replicas"][0].get("adapters", []):
            client.unload_adapter(each["adapter"]["name"])


@pytest.fixture
def expected(shared_tree, client, adapters):
    """{content: (digest, tokens)} of whole loads."""
    found = {}
    for content, directory in adapters.items():
        digest = client.load_adapter(NAME, str(directory))["digest"]
        found[content] = (digest, tokens_with(shared_tree))
    client.unload_adapter(NAME)
    assert len({digest for digest, _ in found.values()}) == 3
    return found


def said_of(client, name=NAME):
    (said,) = [a for a in client.status()["replicas"][0]["adapters"] if a["adapter"]["name"] == name]
    return said


def test_P2_a_rollback_returns_to_the_version_before_and_forward_again(shared_tree, client, adapters, expected):
    client.load_adapter(NAME, str(adapters["first"]), label="step 1")
    assert "previous" not in said_of(client)
    client.load_adapter(NAME, str(adapters["second"]), label="step 2")
    before = said_of(client)["previous"]
    assert (before["label"], before["digest"]) == ("step 1", expected["first"][0])
    with pitstop.Client(shared_tree.run_dir) as other:
        stream = other.generate(PROMPT, max_new_tokens=LONG, adapter=NAME, text_output=False, **GREEDY)
        stream.next(timeout=60)
        back = client.rollback_adapter(NAME, policy="keep")
        chunk = stream.result()
    assert (back["adapter"], back["label"], back["digest"]) == (NAME, "step 1", expected["first"][0])
    versions = [span.adapter.version for span in chunk.spans]
    assert versions[-1] == back["epoch"] > versions[0] and chunk.adapter.digest == expected["first"][0]
    assert tokens_with(shared_tree) == expected["first"][1]
    said = said_of(client)
    assert (said["path"], said["previous"]["label"]) == (str(adapters["first"]), "step 2")
    ended = run("rollback-adapter", "--run-dir", shared_tree.run_dir, NAME, "--policy", "recompute")
    assert ended.returncode == 0 and "adapter 'policy' version" in ended.stdout, ended
    assert tokens_with(shared_tree) == expected["second"][1]
    assert said_of(client)["adapter"]["label"] == "step 2"


def test_a_rollback_without_a_version_before_is_refused(shared_tree, client, adapters):
    admin = shared_tree.door("admin")

    def refused(code, words, **fields):
        reply = admin.call("rollback_weights", **fields)
        assert reply["code"] == code and words in reply["message"], reply

    refused("not_found", "no adapter 'policy' is loaded; none is loaded", adapter=NAME)
    client.load_adapter(NAME, str(adapters["first"]))
    refused("failed_precondition", "no previous version of adapter 'policy' is retained", adapter=NAME)
    with pytest.raises(Refused, match="kv_policy is of the model's weights"):
        admin.call("rollback_weights", adapter=NAME, kv_policy="drain")
    with pytest.raises(Refused, match="adapter_policy is given without an adapter"):
        admin.call("rollback_weights", adapter_policy="keep")
    ended = run("rollback-adapter", "--run-dir", shared_tree.run_dir)
    assert ended.returncode == 2 and "name the adapter" in ended.stderr
    ended = run("rollback-adapter", "--run-dir", shared_tree.run_dir, NAME)
    assert ended.returncode == 1 and "load that version again" in ended.stderr, ended


def by_directory(client, tmp_path, **update):
    """A directory with some of the tensors, and the version's configuration."""
    directory = write_adapter(tmp_path / "part", {name: SECOND[name] for name in PART})
    return client.load_adapter(NAME, str(directory), partial=True, **update)


def by_call(client, _, **update):
    source = source_of({name: SECOND[name] for name in PART})
    return client.update_weights(source=source, adapter=NAME, partial=True, **update)


def by_push(client, _, **update):
    part = {name: SECOND[name] for name in PART}
    return WeightPusher(client).push(part, digests=False, adapter=NAME, partial=True, **update)


def by_session(client, _, **update):
    session = client.begin_update(adapter=NAME, partial=True, **update)["session"]
    for name in PART:
        client.update_bucket(source_of({name: SECOND[name]}), session=session)
    return client.commit_weights(session=session)


def sparse_source():
    """The elements in which the parts differ."""
    tensors, data, nums = [], b"", []
    for name in PART:
        old, new = FIRST[name].reshape(-1), SECOND[name].reshape(-1)
        (at,) = numpy.nonzero(old != new)
        tensors.append({"name": name, "dtype": "F32", "shape": list(FIRST[name].shape)})
        nums.append(len(at))
        data += at.astype(numpy.int32).tobytes() + new[at].astype(numpy.float32).tobytes()
    return {
        "kind": "tensors",
        "format": "sparse",
        "tensors": tensors,
        "num_updates": nums,
        "payloads": [{"data": data}],
    }


def by_elements(client, _, **update):
    update.setdefault("base_digest", said_of(client)["adapter"]["digest"])
    return client.update_weights(source=sparse_source(), adapter=NAME, partial=True, **update)


@pytest.mark.parametrize("how", (by_directory, by_call, by_push, by_session, by_elements))
def test_P10_a_part_gives_the_digest_of_the_whole(shared_tree, client, adapters, expected, tmp_path, how):
    client.load_adapter(NAME, str(adapters["first"]))
    reply = how(client, tmp_path, base_digest=expected["first"][0], label="mixed")
    assert (reply["digest"], reply["label"]) == (expected["mixed"][0], "mixed")
    assert tokens_with(shared_tree) == expected["mixed"][1]
    assert said_of(client).get("path", "") == ""
    assert client.rollback_adapter(NAME)["digest"] == expected["first"][0]
    assert tokens_with(shared_tree) == expected["first"][1]


def test_P2_parts_that_do_not_fit_the_version_are_refused_by_name(shared_tree, client, adapters, expected, tmp_path):
    def refused(code, words, source, **update):
        with pytest.raises(pitstop.PitstopError) as caught:
            client.update_weights(source=source, adapter=NAME, **update)
        assert caught.value.code == code and words in str(caught.value), caught.value

    part = source_of({name: SECOND[name] for name in PART})
    refused("not_found", "no adapter 'policy' is loaded", part, partial=True)
    client.load_adapter(NAME, str(adapters["first"]))
    refused("failed_precondition", "the one that serves has", part, partial=True, base_digest="0" * 32)
    refused("invalid_argument", "needs base_digest and partial", sparse_source(), adapter_config="{}")
    refused("invalid_argument", "adapter_config is empty", part)
    other = json.dumps(config_of(lora_alpha=7))
    refused("invalid_argument", "brings another adapter_config", part, partial=True, adapter_config=other)
    unknown = source_of({"model.layers.0.mlp.z_proj.lora_A.weight": numpy.zeros((4, 8), numpy.float32)})
    refused("invalid_argument", "z_proj.lora_A.weight' is no tensor of the adapter", unknown, partial=True)
    broken = dict(SECOND)
    broken[PART[0]] = numpy.full_like(broken[PART[0]], numpy.nan)
    refused("invalid_argument", "is not finite", source_of({PART[0]: broken[PART[0]]}), partial=True)
    config = json.dumps(config_of())
    session = client.begin_update(adapter=NAME, adapter_config=config, base_digest=expected["first"][0])["session"]
    with pytest.raises(pitstop.PitstopError) as caught:
        client.update_bucket(sparse_source(), session=session)
    assert "the session is not partial" in str(caught.value)
    client.drop_stage(session=session)
    assert said_of(client)["adapter"]["digest"] == expected["first"][0]
    assert tokens_with(shared_tree) == expected["first"][1]


def test_P2_a_part_without_a_tensor_is_refused(shared_tree, client, adapters, expected, tmp_path):
    """A trainer whose filter matches no name would go on over the old version for ever. A step that changes no element
    is one of a trainer that sends differences."""
    client.load_adapter(NAME, str(adapters["first"]))
    empty = write_adapter(tmp_path / "empty", {})
    pickled = {"kind": "tensors", "format": "pickle", "payloads": [{"data": pickle.dumps({})}]}

    def by_empty_session():
        session = client.begin_update(adapter=NAME, partial=True)["session"]
        client.update_bucket(pickled, session=session)
        client.commit_weights(session=session)

    for load in (
        lambda: client.load_adapter(NAME, str(empty), partial=True),
        lambda: client.update_weights(source=pickled, adapter=NAME, partial=True),
        by_empty_session,
    ):
        with pytest.raises(pitstop.PitstopError) as caught:
            load()
        assert caught.value.code == "invalid_argument", caught.value
        assert "the update of adapter 'policy' is partial and brings no tensor" in str(caught.value)
        assert "previous" not in said_of(client) and said_of(client)["adapter"]["digest"] == expected["first"][0]
    session = client.begin_update(adapter=NAME, partial=True)["session"]
    client.update_bucket(pickled, session=session)
    client.update_bucket(source_of({name: SECOND[name] for name in PART}), session=session)
    client.update_bucket(pickled, session=session)
    assert client.commit_weights(session=session)["digest"] == expected["mixed"][0]
    unchanged = sparse_source()
    unchanged.update(num_updates=[0] * len(PART), payloads=[{"data": b""}])
    reply = client.update_weights(source=unchanged, adapter=NAME, partial=True, base_digest=expected["mixed"][0])
    assert reply["digest"] == expected["mixed"][0]
    assert tokens_with(shared_tree) == expected["mixed"][1]


def test_P10_a_manifest_with_pefts_names_is_compared(client, adapters):
    def declared(**wrong):
        digests = {name: wrong.get("digest") or tensor_digest(tensor) for name, tensor in FIRST.items()}
        return [{"name": f"base_model.model.{name}", "digest": digest} for name, digest in digests.items()]

    assert client.load_adapter(NAME, str(adapters["first"]), manifest=declared())["ok"]
    with pytest.raises(pitstop.PitstopError) as caught:
        client.load_adapter(NAME, str(adapters["first"]), manifest=declared(digest="0" * 32))
    assert caught.value.code == "data_loss" and "the resident tensor's digest is" in str(caught.value)


def test_a_part_pins_and_does_not_unpin(client, adapters, tmp_path):
    client.load_adapter(NAME, str(adapters["first"]))
    for pinned in (True, False):
        by_directory(client, tmp_path, adapter_pinned=pinned)
        assert said_of(client)["pinned"]


def test_P2_an_evicted_version_is_rolled_back_to_and_changed(start_tree, adapters):
    """With room for one adapter in memory, the others are in files."""
    one = sum(tensor.nbytes for tensor in FIRST.values()) * 3 // 2
    tree = start_tree("--adapter-memory", one, "--no-http")
    with pitstop.Client(tree.run_dir) as client:
        digests = {}
        for content in ("second", "first"):
            digests[content] = client.load_adapter(NAME, str(adapters[content]))["digest"]
        tokens = tokens_with(tree)
        client.load_adapter("other", str(adapters["second"]))
        assert said_of(client)["evicted"]
        assert client.update_weights(
            source=source_of({name: SECOND[name] for name in PART}), adapter=NAME, partial=True
        )["ok"]
        assert tokens_with(tree) != tokens
        tokens_with(tree, "other")
        assert client.rollback_adapter(NAME)["digest"] == digests["first"]
        assert tokens_with(tree) == tokens
