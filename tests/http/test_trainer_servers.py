"""Calls of trainers to the servers that they patch themselves: AReaL's plug-in, prime-rl's and
slime's routes, skyrl-train's bodies.
"""

from control_tree import BARD, STORIES, http  # noqa: F401
from pitstop.broadcast import HostBroadcast
from trainers import NUM_WORKERS, load

TREE_FLAGS = ("--tp", NUM_WORKERS)


def label(http):  # noqa: F811
    return http.get("/get_weight_version").json()["weight_version"]


def test_areal_pauses_updates_from_a_directory_and_goes_on(http):  # noqa: F811
    answer = http.ok("POST", "/areal_pause_generation", {})
    assert answer.json()["success"] and http.get("/is_paused").json()["is_paused"]
    answer = http.ok("POST", "/areal_update_weights", {"model_path": BARD, "weight_version": "bard"})
    assert answer.json()["success"] and label(http) == "bard"
    assert http.ok("POST", "/areal_continue_generation").json()["success"]
    assert not http.get("/is_paused").json()["is_paused"]
    refused = http.post("/areal_update_weights", {"model_path": "/nowhere"})
    assert refused.status == 400 and not refused.json()["success"] and label(http) == "bard"


def test_areal_announces_a_broadcast_and_starts_it(http):  # noqa: F811
    tensors = load(BARD)
    with HostBroadcast("areal", num_workers=NUM_WORKERS) as group:
        spec = {
            "master_address": group.host,
            "master_port": str(group.port),
            "rank_offset": 1,
            "world_size": NUM_WORKERS + 1,
            "backend": "host",
            "group_name": "areal",
        }
        joined = http.in_background(http.post, "/areal_init_weights_update_group", spec)
        group.accept(20)
        assert joined.result().json()["success"], joined.result()
        meta = {
            "names": list(tensors),
            "dtypes": ["bfloat16"] * len(tensors),
            "shapes": [list(array.shape) for array in tensors.values()],
            "group_name": "areal",
        }
        assert http.ok("POST", "/areal_set_update_weight_meta", meta).json()["success"]
        update = http.in_background(http.post, "/areal_update_weights_xccl")
        for array in tensors.values():
            group.broadcast(array)
        assert update.result().json()["success"], update.result()
        again = http.post("/areal_update_weights_xccl")  # refused: an announcement is for one update
        assert again.status == 400 and "areal_set_update_weight_meta" in again.json()["message"]
        http.ok("POST", "/destroy_weights_update_group", {"group_name": "areal"})
    checksums = http.ok("POST", "/weights_checker", {"action": "checksum"}).json()
    http.ok("POST", "/update_weights_from_disk", {"model_path": BARD})
    assert http.ok("POST", "/weights_checker", {"action": "checksum"}).json()["ranks"] == checksums["ranks"]


def test_areals_announcement_names_what_it_lacks(http):  # noqa: F811
    refused = http.post("/areal_set_update_weight_meta", {"names": ["a"], "dtypes": ["bfloat16"]})
    assert refused.status == 400 and "shapes" in refused.json()["message"]


def test_prime_rl_names_a_directory(http):  # noqa: F811
    answer = http.ok("POST", "/update_weights", {"weight_dir": BARD, "version_uid": "step 3"})
    assert answer.json()["status"] == "ok" and label(http) == "step 3"
    refused = http.post("/update_weights", {"weight_dir": "/nowhere"})
    assert refused.status == 404 and label(http) == "step 3"


def test_other_names_for_health(http):  # noqa: F811
    for path in ("/ready", "/liveness"):
        assert http.get(path).status == 200


def test_slimes_own_calls_say_what_they_mean_here(http):  # noqa: F811
    body = {"restore_weights_before_load": True, "post_process_quantization": False}
    assert http.ok("POST", "/post_process_weights", body).json()["success"]
    refused = http.post("/pull_weights", {})
    assert refused.status == 400 and "update_weights_from_disk" in refused.json()["message"]


def test_a_wake_ignores_tags_of_a_body_that_are_none(http):  # noqa: F811
    """skyrl-train sends bodies with such fields, and vLLM ignores all of them."""
    http.ok("POST", "/sleep?level=1")
    http.ok("POST", "/wake_up", {"tags": 1})
    assert not http.get("/is_sleeping").json()["is_sleeping"]


def test_an_init_that_joins_no_group_is_refused(http):  # noqa: F811
    refused = http.post("/init_weight_transfer_engine", {"init_info": {"world_size": 3, "rank_offset": 1}})
    assert refused.status == 400 and "master_address" in refused.json()["error"]["message"]
    http.ok("POST", "/init_weight_transfer_engine", {"init_info": {}})  # ipc


def test_trl_finds_how_weights_are_sent(http):  # noqa: F811
    config = http.get("/server_info?config_format=json").json()["vllm_config"]
    # A tree on CPUs has no NCCL, so its groups use `host`. TRL only requires that a backend is named.
    assert config["weight_transfer_config"] == {"backend": "host"} and config["model"] == STORIES
