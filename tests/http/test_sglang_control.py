"""SGLang's acceptance scenarios about control, on a live tree. The numbers are those of the
scenario list in its interface's specification. Scenarios about several GPUs and about other groups
of routes are in other files or not tested.
"""

import pathlib
import re
import shutil

import numpy
import pytest

from amid import turns
from control_tree import (  # noqa: F401
    BARD,
    LONG,
    LONG_OF_MANY,
    STORIES,
    http,
    kind,
    many,
    one,
    paused_amid,
    read_tensor,
    replicas,
    running_amid,
    tensor_names,
)
from http_calls import finished
from process_tree import wait_until

TREE_FLAGS = ("--tp", 2, "--max-running-requests", 8)


def update(http, path, **fields):
    return http.post("/update_weights_from_disk", {"model_path": path, **fields})


def pause(http, mode, **fields):
    """Returns a function that calls the route; the function's `said` has the last answer."""

    def call():
        call.said = http.ok("POST", "/pause_generation", {"mode": mode, **fields}).json()

    return call


def spans(answer):
    return [(span["version"], span["end"] - span["start"]) for span in answer["meta_info"]["weight_versions"]]


# ---- weights read back, updates from disk ----


def test_scenario_1_parameters_read_back_match_the_checkpoint_before_and_after_an_update(http):
    names = tensor_names(STORIES)
    layer = [name for name in names if ".layers.0." in name]
    picked = [name for name in names if "embed" in name or name.endswith("model.norm.weight")] + layer
    assert len(picked) >= 9
    http.ok("POST", "/update_weights_from_disk", {"model_path": STORIES})
    before = {}
    for name in picked:
        before[name] = http.ok("GET", "/get_weights_by_name", {"name": name, "truncate_size": 10}).json()
        numpy.testing.assert_array_equal(before[name], read_tensor(STORIES, name)[:10], err_msg=name)
    assert update(http, BARD).status == 200
    for name in picked:
        after = http.ok("POST", f"/get_weights_by_name?name={name}&truncate_size=10").json()
        numpy.testing.assert_array_equal(after, read_tensor(BARD, name)[:10], err_msg=name)
        assert after != before[name] or "norm" in name


def test_a_tensor_that_is_not_there_is_400_and_names_near_ones(http):
    answer = http.post("/get_weights_by_name", {"name": "model.layers.0.self_attn.q_prok.weight"})
    assert answer.status == 400
    assert "Get parameter by name failed" in answer.json()["message"]
    assert http.post("/get_weights_by_name", {}).status == 400


def test_scenario_10_an_update_changes_the_output_and_one_back_restores_it(http):
    before = http.generate(max_new_tokens=24)["text"]
    assert update(http, BARD).json()["success"]
    assert http.generate(max_new_tokens=24)["text"] != before
    assert http.ok("GET", "/get_model_info").json()["model_path"] == BARD
    assert update(http, STORIES).json()["success"]
    assert http.generate(max_new_tokens=24)["text"][:32] == before[:32]
    assert http.ok("GET", "/get_model_info").json()["model_path"] == STORIES


def test_scenario_11_a_path_that_is_not_there_changes_nothing(http):
    update(http, STORIES)
    before = http.generate(max_new_tokens=24)["text"]
    answer = update(http, "/nowhere/at/all", weight_version="never")
    assert answer.status == 400
    assert answer.json()["success"] is False and "/nowhere/at/all" in answer.json()["message"]
    assert http.generate(max_new_tokens=24)["text"] == before
    assert http.ok("GET", "/get_model_info").json()["model_path"] == STORIES
    assert http.ok("GET", "/get_weight_version").json()["weight_version"] != "never"


@pytest.mark.parametrize("mode, flush", (("in_place", False), ("retract", True)))
def test_scenarios_2_9_12_14_an_update_under_a_pause_ends_no_request(http, admin, mode, flush):
    paused = pause(http, mode)
    requests = paused_amid(admin, many(http, 32, max_new_tokens=LONG_OF_MANY), 8, paused)
    assert paused.said["status"] == "ok" and paused.said["message"] == "Generation paused successfully."
    updated = update(http, BARD, flush_cache=flush, weight_version="bard")
    assert updated.status == 200 and updated.json()["success"], updated
    assert updated.json()["message"].endswith("Weight version updated to bard.")
    continued = http.ok("POST", "/continue_generation", {}).json()
    assert continued == {"message": "Generation continued successfully.", "status": "ok"}
    outputs = finished(requests)
    assert {kind(output) for output in outputs} == {"length"}
    assert all(output["meta_info"]["completion_tokens"] == LONG_OF_MANY for output in outputs)
    assert any(len(spans(output)) == 2 for output in outputs)
    name = "model.embed_tokens.weight"
    rows = http.ok("POST", "/get_weights_by_name", {"name": name, "truncate_size": 2}).json()
    numpy.testing.assert_array_equal(rows, read_tensor(BARD, name)[:2])
    assert http.ok("POST", "/pause_generation", {"mode": "abort"}).status == 200


def test_a_flush_that_could_not_be_is_refused_before_anything_is_updated(http, admin):
    """SGLang flushes after the update, and its server dies of a flush that fails."""
    (request,) = paused_amid(admin, one(http, max_new_tokens=LONG), pause=pause(http, "in_place"))
    epoch = replicas(admin)[0]["epoch"]
    answer = update(http, BARD, flush_cache=True)
    assert answer.status == 400 and "nothing was updated" in answer.json()["message"]
    assert replicas(admin)[0]["epoch"] == epoch
    http.ok("POST", "/continue_generation")
    assert kind(request.result()) == "length"


def test_scenario_13_abort_all_requests_ends_running_and_queued_ones(http, admin):
    requests = paused_amid(admin, many(http, 32, max_new_tokens=LONG_OF_MANY), 8)
    assert update(http, BARD, abort_all_requests=True).json()["success"]
    assert {kind(output) for output in finished(requests)} == {"abort"}
    http.ok("POST", "/continue_generation")
    assert http.generate(max_new_tokens=3)["meta_info"]["completion_tokens"] == 3


def test_a_refused_update_ends_no_request(http, admin):
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    assert update(http, "/not/there", abort_all_requests=True).status == 400
    assert kind(request.result()) == "length"


def test_an_update_without_a_pause_waits_for_open_requests_and_ends_none(http, admin):
    before = http.generate(max_new_tokens=LONG)["output_ids"]
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    assert update(http, BARD, weight_version="bard").status == 200
    output = request.result()
    assert output["output_ids"] == before and len(spans(output)) == 1


@pytest.mark.parametrize(
    "fields",
    ({}, {"model_path": STORIES, "load_format": "pt"}, {"model_path": 7.5}, {"model_path": STORIES, "kv_policy": "x"}),
)
def test_a_clients_mistake_is_400_and_never_fatal(http, fields):
    answer = http.post("/update_weights_from_disk", fields)
    assert answer.status == 400 and answer.json()["success"] is False


# ---- versions ----


def test_scenario_16_after_a_new_label_all_new_requests_carry_it_alone(http):
    answer = http.ok("POST", "/update_weight_version", {"new_version": "v16"}).json()
    assert answer == {"success": True, "message": "Weight version updated to v16", "new_version": "v16"}
    for output in finished([http.start(prompt=f"Go {i}", max_new_tokens=5) for i in range(8)]):
        assert spans(output) == [("v16", 5)]
        assert output["meta_info"]["weight_version"] == "v16"
    for path in ("/get_weight_version", "/weight_version"):
        assert http.ok("GET", path).json()["weight_version"] == "v16"


def test_scenario_17_a_disk_update_under_retract_splits_spans(http, admin):
    update(http, STORIES, weight_version="old")
    requests = paused_amid(admin, many(http, 4, max_new_tokens=LONG), 4, pause(http, "retract"))
    update(http, BARD, weight_version="new")
    http.ok("POST", "/continue_generation")
    outputs = finished(requests)
    for output in outputs:
        assert [label for label, _ in spans(output)] == ["old", "new"]
        assert sum(num for _, num in spans(output)) == LONG
        assert output["meta_info"]["weight_version"] == "new"


@pytest.mark.parametrize("fields", ({}, {"abort_all_requests": False}))
def test_scenario_18_a_label_changed_in_place_aborts_nothing(http, admin, fields):
    """Also without the field abort_all_requests, where SGLang aborts requests without being asked."""
    http.ok("POST", "/update_weight_version", {"new_version": "a"})
    (request,) = paused_amid(admin, one(http, max_new_tokens=LONG), pause=pause(http, "in_place"))
    http.ok("POST", "/update_weight_version", {"new_version": "b", **fields})
    http.ok("POST", "/continue_generation")
    output = request.result()
    assert kind(output) == "length" and [label for label, _ in spans(output)] == ["a", "b"]


def test_update_weight_version_with_abort_all_requests_ends_what_is_open(http, admin):
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    http.ok("POST", "/update_weight_version", {"new_version": "c", "abort_all_requests": True})
    assert kind(request.result()) == "abort"


def test_P3_an_update_without_a_label_keeps_no_other_versions(http):
    """After such an update SGLang keeps the old label, which would name other weights; no trainer relies on that."""
    update(http, BARD, weight_version="p1")
    assert "updated to" not in update(http, STORIES).json()["message"]
    version = http.ok("GET", "/get_weight_version").json()
    name = f"epoch {version['weight_epoch']}"
    assert version["weight_version"] == name
    output = http.generate(max_new_tokens=4)
    assert spans(output) == [(name, 4)] and output["meta_info"]["weight_version"] == name
    assert f'label="{name}"' in http.ok("GET", "/metrics").body.decode()


def test_scenario_19_no_label_or_the_same_again_splits_nothing(http, admin):
    http.ok("POST", "/update_weight_version", {"new_version": "same"})
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    http.ok("POST", "/update_weight_version", {"new_version": "same"})
    assert len(spans(request.result())) == 1


def test_scenario_20_two_changes_give_three_ordered_spans(http, admin):
    http.ok("POST", "/update_weight_version", {"new_version": "1"})
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    http.ok("POST", "/update_weight_version", {"new_version": "2"})
    tokens = replicas(admin)[0]["output_tokens_total"]
    turns(admin, lambda: replicas(admin)[0]["output_tokens_total"] > tokens, "a token of the second")
    http.ok("POST", "/continue_generation")
    http.ok("POST", "/update_weight_version", {"new_version": "3"})
    labels = spans(request.result())
    assert [label for label, _ in labels] == ["1", "2", "3"] and all(num > 0 for _, num in labels)


def test_scenario_21_requests_aborted_while_retracted_report_their_spans(http, admin):
    requests = paused_amid(admin, many(http, 12, max_new_tokens=LONG), 8, pause(http, "retract"))
    assert http.post("/abort_request", {"abort_all": True}).status == 200
    for output in finished(requests):
        info = output["meta_info"]
        assert kind(output) == "abort"
        assert len(output["output_ids"]) == info["completion_tokens"]
        assert info["weight_versions"][-1]["end"] == info["completion_tokens"]
        if info["completion_tokens"] == 0:
            assert len(info["weight_versions"]) == 1


def test_scenario_25_an_abort_while_paused_in_place_is_answered_at_once(http, admin):
    """SGLang answers such an abort only after the continue."""
    (request,) = paused_amid(admin, one(http, rid="paused-25", max_new_tokens=LONG), pause=pause(http, "in_place"))
    assert http.post("/abort_request", {"rid": "paused-25"}).status == 200
    output = request.result()
    assert kind(output) == "abort" and output["meta_info"]["completion_tokens"] > 0


def test_scenarios_26_27_no_stale_prefix_is_shared_after_an_update(http):
    prompt = list(range(5, 205))
    http.generate(prompt, max_new_tokens=1)
    assert http.generate(prompt, max_new_tokens=1)["meta_info"]["cached_tokens"] >= 150
    update(http, BARD, flush_cache=False, weight_version="27")
    assert http.generate(prompt, max_new_tokens=1)["meta_info"]["cached_tokens"] == 0
    assert http.generate(prompt, max_new_tokens=1)["meta_info"]["cached_tokens"] >= 150


def test_scenario_27_a_pause_ends_by_itself_after_its_time(http, admin):
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    http.ok("POST", "/pause_generation", {"mode": "in_place", "max_pause_s": 0.3})
    assert kind(request.result()) == "length"


# ---- flow control ----


def test_pause_answers_when_generation_stands_still(http, admin):
    (request,) = paused_amid(admin, one(http, max_new_tokens=LONG), pause=pause(http, "in_place"))
    first = replicas(admin)[0]
    assert first["state"] == "paused" and first.get("steps_in_flight", 0) == 0
    assert replicas(admin)[0]["output_tokens_total"] == first["output_tokens_total"]
    assert first["output_tokens_per_s"] == 0
    assert http.get("/health").status == 200, "a router evicts nobody for a pause"
    assert http.get("/health_generate").status == 200
    http.ok("POST", "/continue_generation")
    request.result()


def test_pause_defaults_to_abort_which_no_later_abort_can_hang_on(http, admin):
    """In SGLang an abort pause after an in_place one never ends."""
    (request,) = paused_amid(admin, one(http, max_new_tokens=LONG), pause=pause(http, "in_place"))
    http.ok("POST", "/pause_generation")
    assert kind(request.result()) == "abort"
    queued = http.start(max_new_tokens=3)
    wait_until(lambda: replicas(admin)[0]["num_waiting"] == 1, "the new request to be queued")
    http.ok("POST", "/continue_generation")
    assert kind(queued.result()) == "length"


def test_control_calls_take_query_parameters_and_json_alike(http, admin):
    http.ok("POST", "/pause_generation?mode=retract")
    assert replicas(admin)[0]["pause_mode"] == "retract"
    http.ok("POST", "/pause_generation?mode=in_place", {"mode": "abort"})
    assert replicas(admin)[0]["pause_mode"] == "in_place", "the query wins"
    for raw, status in ((b"", 200), (b"{}", 200), (b"null", 200), (b"[1]", 400), (b"{", 400), (b"\xff", 400)):
        assert http.post("/pause_generation", raw=raw).status == status, raw
    assert http.post("/pause_generation", {"mode": "sideways"}).status == 400
    assert http.post("/pause_generation", {"mode": "abort", "max_pause_s": -1}).status == 400
    http.ok("POST", "/continue_generation")
    http.ok("POST", "/continue_generation")  # a second continue is harmless


def test_flush_is_refused_in_place_and_done_under_retract(http, admin):
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    busy = http.get("/flush_cache")
    assert busy.status == 400 and busy.body.startswith(b"Flush cache failed.")
    http.ok("POST", "/pause_generation", {"mode": "in_place"})
    assert http.post("/flush_cache").status == 400
    late = http.post("/flush_cache?timeout=0.2")
    assert late.status == 400 and late.body.startswith(b"Timed out waiting for idle state.")
    http.ok("POST", "/pause_generation", {"mode": "retract"})
    flushed = http.post("/flush_cache")
    assert flushed.status == 200 and flushed.body.startswith(b"Cache flushed.")
    http.ok("POST", "/continue_generation")
    assert http.get("/flush_cache?timeout=100").status == 200, "it waits until nothing runs"
    assert kind(request.result()) == "length"


# ---- memory ----


def measured_mib(tree):
    """Physical memory of the workers' own pages, by the kernel's count."""
    kib = 0
    for pid in tree.pids("tp_worker"):
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
        kib += int(re.search(r"RssAnon:\s+(\d+)", text).group(1))
    return kib / 1024


def memory(admin):
    return {tag["tag"]: tag for tag in replicas(admin)[0]["memory"]}


def test_scenario_28_release_all_gives_memory_back_and_an_update_brings_a_model(http, admin, tree):
    update(http, BARD)
    bard = http.generate(max_new_tokens=24)["text"]
    update(http, STORIES)
    before = measured_mib(tree)
    released = http.post("/release_memory_occupation", {})
    assert released.status == 200 and released.json() is None
    sizes = memory(admin)
    assert {tag["state"] for tag in sizes.values()} == {"released"}
    assert all(tag.get("resident_bytes", 0) == 0 for tag in sizes.values())
    freed_mib = sum(tag["freed_bytes"] for tag in sizes.values()) / 2**20
    assert freed_mib > 0 and measured_mib(tree) < before - 0.9 * freed_mib
    assert http.post("/resume_memory_occupation", {}).json() is None
    refused = http.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1}})
    assert refused.status >= 400 and b"no weights" in refused.body
    assert update(http, BARD).status == 200
    assert http.generate(max_new_tokens=24)["text"] == bard


def test_scenario_29_kept_weights_come_back_without_an_update(http):
    before = http.generate(max_new_tokens=24)["text"]
    http.ok("POST", "/release_memory_occupation", {"keep_weights": True})
    http.ok("POST", "/resume_memory_occupation", {})
    assert http.generate(max_new_tokens=24)["text"] == before


def test_scenarios_30_32_stage_by_stage_with_an_update_that_flushes_in_between(http, admin, tree):
    http.generate(max_new_tokens=200)
    levels = [measured_mib(tree)]
    for tag in ("kv_cache", "weights"):
        http.ok("POST", "/release_memory_occupation", {"tags": [tag]})
        levels.append(measured_mib(tree))
    assert http.ok("POST", "/release_memory_occupation", {"tags": ["cuda_graph"]}).json() is None
    assert levels[2] < levels[1] - 0.5 and levels[1] <= levels[0]
    http.ok("POST", "/resume_memory_occupation", {"tags": ["weights"]})
    assert update(http, BARD, flush_cache=True, weight_version="30").json()["success"]
    assert memory(admin)["kv_cache"]["state"] == "released"
    http.ok("POST", "/resume_memory_occupation", {"tags": ["kv_cache"]})
    assert spans(http.generate(max_new_tokens=4)) == [("30", 4)]


def test_scenario_33_a_wrong_order_is_a_clean_error_and_the_engine_serves_on(http):
    early = http.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
    assert early.status == 400 and "not currently released" in early.json()["message"]
    http.ok("POST", "/release_memory_occupation", {"tags": ["kv_cache"]})
    twice = http.post("/release_memory_occupation", {"tags": ["kv_cache"]})
    assert twice.status == 400 and "already released" in twice.json()["error"]["message"]
    assert http.post("/release_memory_occupation", {"tags": ["nonsense"]}).status == 400
    http.ok("POST", "/resume_memory_occupation", {"tags": ["kv_cache"]})
    assert http.generate(max_new_tokens=3)["meta_info"]["completion_tokens"] == 3


def test_a_release_of_a_busy_engine_is_refused_and_ends_nothing(http, admin):
    """SGLang's scheduler dies of such a release."""
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    answer = http.post("/release_memory_occupation", {})
    assert answer.status == 400 and answer.json()["success"] is False
    assert kind(request.result()) == "length"


# ---- the weight checker ----


def test_scenarios_34_36_37_snapshot_and_compare(http):
    assert http.post("/weights_checker", {"action": "snapshot"}).status == 200
    assert http.post("/weights_checker", {"action": "compare"}).status == 200
    update(http, STORIES)  # the same bytes again
    assert http.get("/weights_checker?action=compare").status == 200
    update(http, BARD)
    changed = http.post("/weights_checker", {"action": "compare"})
    assert changed.status == 400 and "name=model.embed_tokens.weight" in changed.json()["message"]


def test_scenario_35_an_unknown_action_is_unsupported(http):
    answer = http.post("/weights_checker", {"action": "explode"})
    assert answer.status == 400 and "Unsupported" in answer.json()["message"]


def test_scenario_38_checksums_are_stable_and_follow_the_weights(http):
    first = http.ok("POST", "/weights_checker").json()
    assert first == http.ok("GET", "/weights_checker", {"action": "checksum"}).json()
    checksums = first["ranks"][0]["checksums"]
    assert all(re.fullmatch("[0-9a-f]{16}", checksum) for checksum in checksums.values())
    assert not any("inv_freq" in name for name in checksums)
    update(http, BARD)
    assert http.ok("POST", "/weights_checker").json()["per_engine_checksum"] != first["per_engine_checksum"]


# ---- aborts, information ----


def test_scenario_40_abort_all_ends_running_and_queued_requests(http, admin):
    requests = running_amid(admin, many(http, 32, max_new_tokens=LONG_OF_MANY), 8)
    assert http.post("/abort_request", {"abort_all": True}).status == 200
    assert {kind(output) for output in finished(requests)} == {"abort"}


@pytest.mark.parametrize("body", [None, {}, {"rid": "other"}])
def test_an_abort_may_stand_in_the_query(http, admin, body):
    """SGLang answers such a call with 200, and aborts nothing."""
    requests = paused_amid(admin, many(http, 2, max_new_tokens=LONG), 2)
    assert http.post("/abort_request?abort_all=true", body).status == 200
    assert {kind(output) for output in finished(requests)} == {"abort"}


def test_an_abort_in_the_body_counts_over_the_query(http, admin):
    names = ("req-1", "req-2")
    requests = paused_amid(admin, lambda: [http.start(rid=rid, max_new_tokens=LONG) for rid in names], 2)
    assert http.post("/abort_request?rid=req-2", {"rid": "req-1"}).status == 200
    assert http.post("/abort_request?abort_all=true", {"abort_all": False}).status == 200
    http.ok("POST", "/continue_generation")
    assert [kind(output) for output in finished(requests)] == ["abort", "length"]
    assert http.post("/abort_request?abort_all=perhaps").status == 400


def test_an_abort_takes_an_exact_id_and_no_prefix(http, admin):
    names = ("req-1", "req-10")
    requests = paused_amid(admin, lambda: [http.start(rid=rid, max_new_tokens=LONG) for rid in names], 2)
    assert http.post("/abort_request", {"rid": "req-1"}).status == 200
    http.ok("POST", "/continue_generation")
    assert [kind(output) for output in finished(requests)] == ["abort", "length"]


def test_server_info_has_both_vocabularies(http):
    for path in ("/server_info", "/get_server_info?config_format=json"):
        info = http.ok("GET", path).json()
        assert info["tp_size"] == 2 and info["dp_size"] == 1 and info["pp_size"] == 1
        assert info["model_path"] == STORIES and info["status"] == "ready"
        assert info["max_total_num_tokens"] > 0 and info["version"]
        assert info["internal_states"][0]["world_size"] == 2
        assert {"vllm_config", "vllm_env", "system_env"} <= set(info)
    assert isinstance(info["vllm_config"], dict)


def test_a_bad_checkpoint_leaves_the_old_weights_serving(http, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(STORIES, broken)
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[: len(data) // 2])
    update(http, STORIES)
    before = http.generate(max_new_tokens=24)["text"]
    answer = update(http, str(broken))
    assert answer.status == 400 and "rank" in answer.json()["message"]
    assert http.generate(max_new_tokens=24)["text"] == before
