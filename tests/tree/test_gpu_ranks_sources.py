"""The sources of weights into two ranks on GPUs in software: each rank cuts its part of what it receives."""

from gpu_tree import needs_gpu, shared_tree  # noqa: F401  (the fixture, in place of the CPU's)
from test_weights_broadcasts import test_P10_a_broadcast_over_tcp  # noqa: F401
from test_weights_sources import (  # noqa: F401
    client,
    test_P2_a_push_of_another_model_is_refused,
    test_P2_a_session_is_one_transaction,
    test_P10_a_sparse_update_changes_those_elements,
    test_P10_flattened_buckets_in_a_session,
    test_P10_numpy_arrays_are_pushed,
    test_P10_serialized_named_tensors_and_their_references_come_back,
    test_a_partial_update_says_so,
)

pytestmark = needs_gpu
GPU_TREE_FLAGS = ("--tp", 2)
