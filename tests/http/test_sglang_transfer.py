"""SGLang's acceptance scenarios about weights from a trainer, on a live tree. The numbers are those
of the scenario list in its interface's specification; TCP and shared memory replace NCCL and CUDA
IPC.
"""

import pathlib
import time

import numpy
import pytest

import torch_sender
from control_tree import BARD, LONG_OF_MANY, STORIES, http, kind, many, paused_amid, read_tensor  # noqa: F401
from http_calls import Http, finished
from places import short_directory
from process_tree import live_tree, wait_until
from trainers import broadcast, load, serialized, sglang_group, tensors_body, write_checkpoint

TREE_FLAGS = ("--tp", 2, "--max-running-requests", 8)
needs_torch = pytest.mark.skipif(torch_sender.torch is None, reason=torch_sender.REASON)
EMBEDDING = "model.embed_tokens.weight"
DOWN = "model.layers.2.mlp.down_proj.weight"
LAYER = "model.layers.1."
READ_BACK = [
    EMBEDDING,
    "model.norm.weight",
    f"{LAYER}input_layernorm.weight",
    f"{LAYER}post_attention_layernorm.weight",
    *(f"{LAYER}self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"{LAYER}mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
]
# A collected call flushes nothing, whatever its flush_cache.
PAUSES = pytest.mark.parametrize("mode, flush", (("in_place", False), ("in_place", True), ("retract", True)))


def rows(http, name, num=10):
    body = {"name": name, "truncate_size": num}
    return http.ok("POST", "/get_weights_by_name", body).json()


def checksum(http):
    return http.ok("POST", "/weights_checker").json()["per_engine_checksum"]


def check_rows(http, model):
    for name in READ_BACK:
        numpy.testing.assert_array_equal(rows(http, name), read_tensor(model, name)[:10], err_msg=name)
    assert rows(http, "lm_head.weight") == rows(http, EMBEDDING)


# ---- broadcasts ----


@pytest.mark.parametrize("load_format", (None, "flattened_bucket"))
def test_scenarios_1_4_5_6_a_broadcast_brings_the_other_model_within_seconds(http, load_format):
    """sglang_group sends master_port as a text (6) and destroys the group (5)."""
    check_rows(http, STORIES)
    with sglang_group(http) as group:
        begin = time.monotonic()
        answer = broadcast(http, group, load(BARD), load_format)
        assert answer.status == 200, answer
        assert answer.json()["message"] == "Succeeded to update parameter online."
        assert time.monotonic() - begin < 30  # broadcast() itself may wait for minutes
    check_rows(http, BARD)


@PAUSES
@pytest.mark.parametrize("load_format", (None, "flattened_bucket"))
def test_scenario_2_a_broadcast_under_a_pause_and_an_abort_pause_after_it(http, admin, mode, flush, load_format):
    with sglang_group(http) as group:
        pause = lambda: http.ok("POST", "/pause_generation", {"mode": mode})  # noqa: E731
        requests = paused_amid(admin, many(http, 32, max_new_tokens=LONG_OF_MANY), 8, pause)
        answer = broadcast(http, group, load(BARD), load_format, flush_cache=flush, weight_version="b")
        assert answer.status == 200, answer
        http.ok("POST", "/continue_generation")
    http.ok("POST", "/pause_generation", {"mode": "abort"})
    kinds = [kind(output) for output in finished(requests)]
    assert "abort" in kinds and set(kinds) <= {"abort", "length"}


@pytest.fixture(scope="module")
def untied_tree():
    """A tree whose model has a head of its own."""
    tensors = load(STORIES)
    tensors["lm_head.weight"] = tensors[EMBEDDING][::-1].copy()
    with short_directory() as path:
        model = write_checkpoint(path / "untied", STORIES, tensors, tie_word_embeddings=False)
        with live_tree(path / "tree", "--port", "0", "--tp", 2, "--model", model) as served:
            yield served


@pytest.mark.parametrize("is_tied", (True, False))
def test_scenario_3_a_tied_head_follows_the_embedding_that_was_sent_alone(http, request, is_tied):
    server = http if is_tied else Http(request.getfixturevalue("untied_tree").url)
    before = rows(server, "lm_head.weight", 3)
    with sglang_group(server) as group:
        answer = broadcast(server, group, {EMBEDDING: load(BARD)[EMBEDDING]})
        assert answer.status == 200, answer
    numpy.testing.assert_array_equal(rows(server, EMBEDDING, 3), read_tensor(BARD, EMBEDDING)[:3])
    assert rows(server, "lm_head.weight", 3) == (rows(server, EMBEDDING, 3) if is_tied else before)


def test_a_broadcast_into_a_group_that_is_not_there_names_it(http):
    body = {"names": [DOWN], "dtypes": ["bfloat16"], "shapes": [[128, 384]], "group_name": "nobody"}
    answer = http.post("/update_weights_from_distributed", body)
    assert answer.status == 400 and answer.json()["success"] is False
    assert "nobody" in answer.json()["message"] and "init_weights_update_group" in answer.json()["message"]


def test_one_tensor_may_come_by_its_singular_names(http):
    """SkyRL's client sends `name`, `dtype` and `shape` for a single tensor."""
    array = load(BARD)[DOWN]
    with sglang_group(http) as group:
        body = {"name": DOWN, "dtype": "bfloat16", "shape": list(array.shape)}
        update = http.in_background(http.post, "/update_weights_from_distributed", body)
        group.broadcast(array)
        assert update.result().status == 200, update.result()
    numpy.testing.assert_array_equal(rows(http, DOWN), read_tensor(BARD, DOWN)[:10])


# ---- tensors ----


@needs_torch
@pytest.mark.parametrize("load_format", (None, "direct", "flattened_bucket"))
def test_scenario_7_a_perturbed_tensor_gives_the_checksum_of_the_perturbed_model(http, tmp_path, load_format):
    before = checksum(http)
    tensors = load(STORIES)
    perturbed = tensors[DOWN].copy()
    perturbed.reshape(-1)[:128] ^= 0x0040  # one bit of each mantissa
    model = write_checkpoint(tmp_path / "perturbed", STORIES, {**tensors, DOWN: perturbed})
    http.ok("POST", "/update_weights_from_disk", {"model_path": model})
    wanted = checksum(http)
    http.ok("POST", "/update_weights_from_disk", {"model_path": STORIES})
    assert checksum(http) == before != wanted
    torch = torch_sender.torch
    sent = torch.frombuffer(bytearray(perturbed.tobytes()), dtype=torch.uint8).view(torch.bfloat16)
    body, _kept = tensors_body({DOWN: sent.reshape(perturbed.shape)}, load_format)
    answer = http.post("/update_weights_from_tensor", body)
    assert answer.status == 200 and answer.json()["message"] == "Success", answer
    assert checksum(http) == wanted


@needs_torch
def test_scenario_8_the_senders_memory_is_let_go(http, tree):
    before = torch_sender.torch_segments()
    for load_format in (None, "flattened_bucket"):
        body, kept = tensors_body(torch_sender.load(BARD), load_format)
        assert http.post("/update_weights_from_tensor", body).status == 200
        del kept
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")
    for pid in tree.pids("tp_worker"):
        assert "/torch_" not in pathlib.Path(f"/proc/{pid}/maps").read_text()


@needs_torch
@PAUSES
def test_scenario_9_tensors_under_a_pause_end_no_request_and_read_back(http, admin, mode, flush):
    pause = lambda: http.ok("POST", "/pause_generation", {"mode": mode})  # noqa: E731
    requests = paused_amid(admin, many(http, 32, max_new_tokens=LONG_OF_MANY), 8, pause)
    filled = torch_sender.torch.full_like(torch_sender.load(STORIES)[DOWN], 1.5)
    body, _kept = tensors_body({DOWN: filled}, flush_cache=flush)
    answer = http.post("/update_weights_from_tensor", body)
    assert answer.status == 200, answer
    http.ok("POST", "/continue_generation")
    assert "abort" not in {kind(output) for output in finished(requests)}
    assert all(value == 1.5 for row in rows(http, DOWN) for value in row)


@needs_torch
def test_scenarios_46_48_strided_and_transposed_tensors_arrive_bit_by_bit(http):
    tensors = torch_sender.load(BARD)
    for tensor in (
        tensors[DOWN].t().contiguous().share_memory_().t(),  # transposed
        tensors[DOWN].repeat_interleave(2, dim=1).share_memory_()[:, ::2],  # every other column
    ):
        assert not tensor.is_contiguous()
        http.ok("POST", "/update_weights_from_disk", {"model_path": STORIES})
        payload = bytes(torch_sender.ForkingPickler.dumps([(DOWN, tensor)]))
        body = {"serialized_named_tensors": serialized([payload, payload])}
        answer = http.post("/update_weights_from_tensor", body)
        assert answer.status == 200, answer
        numpy.testing.assert_array_equal(rows(http, DOWN, 128), read_tensor(BARD, DOWN))


@needs_torch
def test_scenario_47_a_bucket_whose_metadata_is_wrong_is_400_and_changes_nothing(http):
    torch = torch_sender.torch
    before = checksum(http)
    sound = torch_sender.load(BARD)[DOWN]

    def bucket(change, data=None):
        """A bucket whose metadata is a valid entry, changed by change()."""
        entry = torch_sender.bucket_class()()
        size = sound.numel() * sound.element_size()
        entry.name, entry.shape, entry.dtype = DOWN, sound.shape, sound.dtype
        entry.start_idx, entry.end_idx, entry.numel = 0, size, size
        metadata = change(entry) or [entry]
        flat = (torch_sender.as_bytes(sound) if data is None else data).clone().share_memory_()
        kept.append(flat)
        made = {"flattened_tensor": flat, "metadata": metadata}
        return bytes(torch_sender.ForkingPickler.dumps(made))

    kept = []
    changes = {
        "beyond its end": lambda entry: setattr(entry, "end_idx", entry.end_idx + 2),
        "a negative begin": lambda entry: setattr(entry, "start_idx", -2),
        "a negative extent": lambda entry: setattr(entry, "shape", torch.Size([-128, -384])),
        "another size than its shape": lambda entry: setattr(entry, "shape", torch.Size([128, 383])),
        "no tensor of the model": lambda entry: setattr(entry, "name", "model.nothing.weight"),
    }
    for what, change in changes.items():
        body = {
            "serialized_named_tensors": serialized([bucket(change) for _ in range(2)]),
            "load_format": "flattened_bucket",
        }
        answer = http.post("/update_weights_from_tensor", body)
        assert answer.status == 400 and answer.json()["success"] is False, (what, answer)
    assert checksum(http) == before


def test_a_loader_of_ones_own_is_refused_and_changes_nothing(http):
    before = checksum(http)
    body = {"serialized_named_tensors": ["gAQu"] * 2, "load_format": "my.loader"}
    answer = http.post("/update_weights_from_tensor", body)
    assert answer.status == 400 and "load_format" in answer.json()["message"]
    assert checksum(http) == before


# ---- the weight checker ----


def test_scenario_39_after_reset_tensors_nothing_compares_until_an_update(http):
    http.ok("POST", "/weights_checker", {"action": "snapshot"})
    assert http.ok("POST", "/weights_checker", {"action": "reset_tensors"}).json()["success"]
    changed = http.post("/weights_checker", {"action": "compare"})
    assert changed.status == 400 and changed.json()["success"] is False
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 1}}
    refused = http.post("/generate", body)
    assert refused.status >= 400 and b"no weights" in refused.body
    http.ok("POST", "/update_weights_from_disk", {"model_path": STORIES})
    http.ok("POST", "/weights_checker", {"action": "compare"})
    assert http.generate(max_new_tokens=3)["meta_info"]["completion_tokens"] == 3
