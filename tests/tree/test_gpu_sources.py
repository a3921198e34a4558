"""The sources of weights (test_weights_sources.py, test_weights_broadcasts.py), into a tree on the GPU in software."""

from gpu_tree import needs_gpu, shared_tree  # noqa: F401  (the fixture, in place of the CPU's)
from test_weights_broadcasts import (  # noqa: F401
    test_P2_a_broadcast_of_another_size_is_told_to_the_trainer,
    test_P2_a_trainer_that_dies_costs_the_stage_and_the_next_one_joins,
    test_P10_a_broadcast_over_tcp,
)
from test_weights_sources import (  # noqa: F401
    client,
    test_a_partial_update_says_so,
    test_a_view_that_is_not_contiguous_is_gathered,
    test_P2_a_push_of_another_model_is_refused,
    test_P2_a_pusher_that_fails_tells_its_workers,
    test_P2_a_session_is_one_transaction,
    test_P2_a_session_that_is_not_complete_or_wrong_is_dropped,
    test_P2_a_sparse_update_out_of_range_is_refused,
    test_P2_bytes_that_do_not_fit_are_refused,
    test_P5_an_abandoned_session_ends_by_its_deadline,
    test_P7_bad_payloads_are_refused_and_lend_nothing,
    test_P7_payloads_for_another_number_of_ranks_are_refused_and_given_back,
    test_P10_a_sparse_update_changes_those_elements,
    test_P10_flattened_buckets_in_a_session,
    test_P10_numpy_arrays_are_pushed,
    test_P10_raw_bytes_in_one_call,
    test_P10_serialized_named_tensors_and_their_references_come_back,
    test_P10_tensors_that_were_serialized_once_serve_many_updates,
)

pytestmark = needs_gpu
