"""The sources of weights into two ranks on GPUs in software: each rank cuts its part of what it receives."""

import sys

import pytest

from cuda_sender import Sender
from gpu_tree import BUILD, machine, needs_gpu, shared_tree  # noqa: F401  (the fixture, in place of the CPU's)
from process_tree import ROOT, wait_until
from test_updates import BARD
from test_weights_broadcasts import test_P10_a_broadcast_over_tcp  # noqa: F401
from test_weights_sources import (  # noqa: F401
    client,
    test_a_partial_update_says_so,
    test_P2_a_push_of_another_model_is_refused,
    test_P2_a_session_is_one_transaction,
    test_P10_a_sparse_update_changes_those_elements,
    test_P10_flattened_buckets_in_a_session,
    test_P10_numpy_arrays_are_pushed,
    test_P10_serialized_named_tensors_and_their_references_come_back,
)

sys.path.insert(0, str(ROOT / "client" / "python"))
import pitstop  # noqa: E402  (after the path)

pytestmark = needs_gpu
GPU_TREE_FLAGS = ("--tp", 2)


@pytest.mark.parametrize("num", [1, 3, 4])
def test_P2_handles_for_another_number_of_ranks_are_refused_and_given_back(client, shared_tree, monkeypatch, num):
    machine(monkeypatch, shared_tree.run_dir.parent)
    before = client.weight_digests()["digest"]
    with Sender(BUILD, BARD) as sender:
        payloads = [{"data": sender.payload()} for _ in range(num)]
        with pytest.raises(pitstop.PitstopError) as error:
            client.update_weights(source={"kind": "tensors", "format": "pickle", "payloads": payloads})
        what = {
            1: "one payload for 2 ranks: a handle of a tensor is for one rank; send one payload each",
            3: "3 payloads for 2 ranks; send one each",
            4: "4 payloads for 2 ranks; send one each",
        }[num]
        assert error.value.code == "invalid_argument" and what in error.value.message, error.value

        def are_back():
            references = sender.ask("references")["references"]
            assert len(references) > 10 * num
            return not any(references)

        wait_until(are_back, "the references to be given back")
    assert client.weight_digests()["digest"] == before
