"""vLLM's acceptance scenarios about control, on a live tree of two replicas."""

import shutil
import subprocess
import time

import pytest

from control_tree import BARD, LONG, http, kind, many, one, paused_amid, replicas, running_amid  # noqa: F401
from http_calls import Http, finished, is_prefix
from process_tree import end_with_parent, environment, wait_until

TREE_FLAGS = ("--dp", 2, "--max-running-requests", 4)


def num(admin, field):
    return sum(replica[field] for replica in replicas(admin))


# ---- pause and resume ----


def test_pause_by_default_ends_streams_and_waiting_requests_with_what_they_have(http, admin):
    prompts = [f"Tale {i}: there was" for i in range(12)]
    whole = [http.generate(prompt, max_new_tokens=LONG)["output_ids"] for prompt in prompts]
    begin = lambda: [http.in_background(http.stream, prompt, max_new_tokens=LONG) for prompt in prompts]  # noqa: E731
    streams = running_amid(admin, begin, 8)
    assert http.ok("POST", "/pause").json() == {"status": "paused"}
    for chunks, undisturbed in zip(finished(streams), whole):
        assert kind(chunks[-1]) == "abort"
        assert is_prefix(chunks[-1]["output_ids"], undisturbed)
    assert http.ok("GET", "/is_paused").json() == {"is_paused": True}
    assert http.ok("POST", "/resume").json() == {"status": "resumed"}
    assert http.ok("GET", "/is_paused").json() == {"is_paused": False}


@pytest.mark.parametrize("clear_cache", ("false", "true"))
def test_keep_loses_doubles_and_shifts_no_token(http, admin, clear_cache):
    prompts = [f"Tale {i}: there was" for i in range(6)]
    whole = [http.generate(prompt, max_new_tokens=LONG)["output_ids"] for prompt in prompts]
    begin = lambda: [http.start(prompt, max_new_tokens=LONG) for prompt in prompts]  # noqa: E731
    requests = running_amid(admin, begin, len(prompts))
    for _ in range(3):
        http.ok("POST", f"/pause?mode=keep&clear_cache={clear_cache}")
        assert (num(admin, "num_running") == 0) == (clear_cache == "true")
        http.ok("POST", "/resume")
    outputs = finished(requests)
    assert [output["output_ids"] for output in outputs] == whole
    assert {kind(output) for output in outputs} == {"length"}


def test_a_request_posted_during_a_pause_gets_no_byte_until_resume(http, admin):
    http.ok("POST", "/pause?mode=keep")
    request = http.start(max_new_tokens=5)
    wait_until(lambda: num(admin, "num_waiting") == 1, "it to be counted as waiting")
    metrics = http.ok("GET", "/metrics").body.decode().splitlines()
    waiting = [line for line in metrics if line.startswith("vllm:num_requests_waiting{")]
    assert sorted(line.split()[-1] for line in waiting) == ["0", "1"]
    assert not request.done()
    http.ok("POST", "/resume")
    assert request.result()["meta_info"]["completion_tokens"] == 5


def test_wait_returns_after_the_running_ones_and_queued_ones_survive(http, admin):
    requests = running_amid(admin, many(http, 12, "Tale {}", max_new_tokens=LONG), 8)
    http.ok("POST", "/pause?mode=wait")
    wait_until(lambda: sum(request.done() for request in requests) == 8, "the eight to be answered")
    assert num(admin, "num_waiting") == 4 and num(admin, "num_running") == 0
    http.ok("POST", "/resume")
    assert {kind(output) for output in finished(requests)} == {"length"}


def test_pause_takes_the_deprecated_flag_json_and_refuses_what_it_does_not_know(http, admin):
    http.ok("POST", "/pause?wait_for_inflight_requests=true")
    assert replicas(admin)[0]["pause_mode"] == "wait"
    http.ok("POST", "/pause", {"mode": "keep", "clear_cache": False})
    assert replicas(admin)[1]["pause_mode"] == "in_place"
    bad = http.post("/pause?mode=foo")
    assert bad.status == 400 and "foo" in bad.json()["error"]["message"]
    assert bad.json()["error"]["code"] == 400


def test_pauses_and_resumes_may_be_made_again_and_together(http):
    """A client may repeat the calls; two at once have the same result."""
    for _ in range(3):
        http.ok("POST", "/pause?mode=keep")
    answers = finished([http.in_background(http.post, "/pause?mode=keep") for _ in range(8)])
    assert {answer.status for answer in answers} == {200}
    for _ in range(3):
        http.ok("POST", "/resume")


def test_dp_a_pause_with_one_rank_busy_and_a_thousand_cycles_with_arrivals(http, admin):
    (busy,) = running_amid(admin, one(http, max_new_tokens=LONG))
    arrivals = []
    for i in range(1000):
        http.ok("POST", "/pause?mode=keep&clear_cache=false")
        if i % 20 == 0:
            arrivals.append(http.start(f"Arrival {i}", max_new_tokens=8))
        http.ok("POST", "/resume")
    assert {kind(output) for output in finished([busy, *arrivals])} == {"length"}


@pytest.mark.parametrize("fan_out", ("sequential", "concurrent"))
def test_dp_a_fan_out_to_every_server_pauses_once_however_it_is_made(http, admin, front_end, fan_out):
    """Trainers call every server in their list; here two of the servers belong to one tree."""
    servers = [http, Http(front_end().http.url)]

    def everywhere(path):
        if fan_out == "sequential":
            answers = [server.post(path) for server in servers]
        else:
            answers = finished([http.in_background(server.post, path) for server in servers])
        assert {answer.status for answer in answers} == {200}

    whole = http.generate(max_new_tokens=LONG)["output_ids"]
    requests = running_amid(admin, lambda: [server.start(max_new_tokens=LONG) for server in servers], 2)
    for clear_cache in ("false", "true"):
        everywhere(f"/pause?mode=keep&clear_cache={clear_cache}")
        assert http.ok("GET", "/is_paused").json()["is_paused"] is True
        everywhere("/resume")
    assert [output["output_ids"] for output in finished(requests)] == [whole, whole]


# ---- sleep and wake ----


def states(admin):
    return [{tag["tag"]: tag["state"] for tag in replica["memory"]} for replica in replicas(admin)]


def test_sleep_with_keep_and_a_wake_let_requests_go_on(http, admin):
    whole = http.generate(max_new_tokens=LONG)["output_ids"]
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    slept = http.ok("POST", "/sleep?mode=keep")
    assert slept.body == b"" and slept.headers["Content-Length"] == "0"
    assert states(admin) == [{"weights": "released", "kv_cache": "released"}] * 2
    assert http.ok("GET", "/is_sleeping").json()["is_sleeping"] is True
    assert http.ok("GET", "/is_paused").json()["is_paused"] is True
    assert http.ok("POST", "/wake_up").body == b""
    assert request.result()["output_ids"] == whole
    assert http.ok("GET", "/is_sleeping").json()["is_sleeping"] is False


def test_a_partial_wake_generates_nothing_and_a_second_of_the_same_tag_is_harmless(http, admin):
    http.ok("POST", "/sleep?level=1")
    request = http.start(max_new_tokens=5)
    http.ok("POST", "/wake_up?tags=weights")
    assert states(admin) == [{"weights": "resident", "kv_cache": "released"}] * 2
    http.ok("POST", "/wake_up?tags=weights")
    assert not request.done() and num(admin, "steps_in_flight") == 0
    # One of the two tags is resumed already: the call still resumes the other one.
    http.ok("POST", "/wake_up?tags=weights&tags=kv_cache")
    assert request.result()["meta_info"]["completion_tokens"] == 5


def test_a_colocated_step_at_level_two(http, admin):
    """sleep(2), train, wake the weights, update, wake the KV."""
    http.ok("POST", "/sleep", {"level": 2})  # a JSON body, in SkyRL's form
    assert all(tag.get("host_bytes", 0) == 0 for tag in replicas(admin)[0]["memory"])
    http.ok("POST", "/wake_up", {"tags": ["weights"]})
    answer = http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": BARD}})
    assert answer.status == 200 and answer.json() == {"results": [None]}
    http.ok("POST", "/wake_up?tags=kv_cache")
    assert http.generate(max_new_tokens=4)["meta_info"]["completion_tokens"] == 4


def test_a_wake_before_the_weights_lets_requests_go_on_when_they_come(http, admin):
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    http.ok("POST", "/sleep?level=2&mode=keep")
    http.ok("POST", "/wake_up")
    assert replicas(admin)[0]["state"] == "awaiting_weights"
    http.ok("POST", "/collective_rpc", {"method": "reload_weights"})
    assert kind(request.result()) == "length"


def test_level_zero_only_pauses_and_a_pause_may_outlive_a_wake(http, admin):
    http.ok("POST", "/sleep?level=0&mode=keep")
    assert states(admin) == [{"weights": "resident", "kv_cache": "resident"}] * 2
    http.ok("POST", "/wake_up?tags=scheduling&keep_pause=true")
    assert http.ok("GET", "/is_paused").json()["is_paused"] is True
    http.ok("POST", "/wake_up?tags=scheduling")
    assert http.ok("GET", "/is_paused").json()["is_paused"] is False


def test_sleeping_twice_and_mistakes(http, admin):
    http.ok("POST", "/sleep")
    http.ok("POST", "/sleep")
    early = http.post("/resume")
    assert early.status == 409 and "released" in early.json()["error"]["message"]
    assert http.post("/sleep?level=two").status == 400
    assert http.post("/sleep?level=9").status == 400
    assert http.post("/sleep?mode=foo").status == 400
    assert http.post("/wake_up?tags=nonsense").status == 400
    http.ok("POST", "/wake_up")
    assert http.generate(max_new_tokens=3)["meta_info"]["completion_tokens"] == 3


# ---- the prefix cache ----


def test_reset_prefix_cache_says_what_came_of_it(http, admin):
    (request,) = running_amid(admin, one(http, max_new_tokens=LONG))
    refused = http.ok("POST", "/reset_prefix_cache").json()
    assert refused["success"] is False and "hold" in refused["message"]
    forced = http.ok("POST", "/reset_prefix_cache?reset_running_requests=true").json()
    assert forced["success"] is True
    output = request.result()
    assert kind(output) == "length" and output["meta_info"]["completion_tokens"] == LONG
    assert http.ok("POST", "/reset_prefix_cache", {"reset_running_requests": False}).json()["success"]
    assert http.ok("GET", "/is_paused").json()["is_paused"] is False


def test_reset_prefix_cache_does_not_touch_another_callers_pause(http, admin):
    keep = lambda: http.ok("POST", "/pause?mode=keep&clear_cache=false")  # noqa: E731
    (request,) = paused_amid(admin, one(http, max_new_tokens=LONG), pause=keep)
    # vLLM ignores this field in a body, and so does this server.
    reset = http.ok("POST", "/reset_prefix_cache", {"reset_running_requests": True}).json()
    assert reset["success"] is False and "hold" in reset["message"]
    assert replicas(admin)[0]["num_running"] == 1
    reset = http.ok("POST", "/reset_prefix_cache?reset_running_requests=true").json()
    assert reset["success"] is True, reset
    paused = replicas(admin)[0]
    assert paused["pause_mode"] == "in_place" and paused["num_running"] == 0
    assert paused["num_retracted"] == 1
    http.ok("POST", "/resume")
    assert kind(request.result()) == "length"
    http.ok("POST", "/sleep?level=1")
    assert http.ok("POST", "/reset_prefix_cache?reset_running_requests=true").json()["success"] is True
    assert http.ok("GET", "/is_sleeping").json()["is_sleeping"] is True
    http.ok("POST", "/wake_up")
    assert http.ok("GET", "/is_paused").json()["is_paused"] is False
    assert http.generate(max_new_tokens=3)["meta_info"]["completion_tokens"] == 3


# ---- aborts ----


def test_abort_requests_by_bare_unknown_and_no_ids(http, admin):
    requests = paused_amid(admin, lambda: [http.start(rid=f"mine-{i}", max_new_tokens=LONG) for i in range(3)], 3)
    answer = http.ok("POST", "/abort_requests", {"request_ids": ["mine-0", "nobody"]}).json()
    assert answer == {"status": "aborted", "aborted": 1}
    assert kind(requests[0].result()) == "abort"
    assert http.post("/abort_requests").status == 400, "a forgotten body ends nothing"
    assert http.post("/inference/v1/abort_requests", {}).status == 400
    answer = http.ok("POST", "/inference/v1/abort_requests", {"request_ids": ["mine-1"]}).json()
    assert answer["aborted"] == 1
    assert http.ok("POST", "/abort_requests", {}).json()["aborted"] == 1
    assert {kind(output) for output in finished(requests)} == {"abort"}


def test_two_servers_abort_and_pause_the_same_tree(http, admin, tree):
    """In vLLM, an abort of everything reaches only the server that it is sent to."""
    program = f"{environment()['PITSTOP_BUILD']}/bin/pitstop_http_proc"
    second = subprocess.Popen(
        [program, f"--run-dir={tree.run_dir}", "--port=0"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    )
    try:
        url = next(word for line in second.stderr for word in line.split() if word.startswith("http://"))
        other = Http(url.rstrip(".,;"))
        requests = running_amid(admin, lambda: [server.start(max_new_tokens=LONG) for server in (http, other)], 2)
        assert other.ok("POST", "/abort_requests", {}).json()["aborted"] == 2
        assert {kind(output) for output in finished(requests)} == {"abort"}
        other.ok("POST", "/pause?mode=keep")
        assert http.ok("GET", "/is_paused").json()["is_paused"] is True
        http.ok("POST", "/resume")
        assert other.ok("GET", "/is_paused").json()["is_paused"] is False
    finally:
        second.terminate()
        second.wait(20)
        second.stderr.close()


# ---- weights and the world ----


def test_an_update_that_fails_half_way_is_over_and_the_next_may_start(http, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(BARD, broken)
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[:-1000])
    before = http.generate(max_new_tokens=16)["text"]
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(broken)}}
    failed = http.post("/collective_rpc", reload)
    assert failed.status >= 400 and failed.json()["error"]["message"]
    assert http.generate(max_new_tokens=16)["text"] == before
    reload["kwargs"] = {"weights_path": BARD, "weight_version": "bard-2"}
    http.ok("POST", "/collective_rpc", reload)
    assert http.ok("GET", "/weight_info").json()["weight_version"] == "bard-2"
    assert http.generate(max_new_tokens=16)["text"] != before


def test_collective_rpc_knows_the_weight_methods_alone(http):
    unknown = http.post("/collective_rpc", {"method": "my_extension"})
    assert unknown.status == 501
    assert "Call to my_extension method failed" in unknown.json()["error"]["message"]
    for body in ({}, {"method": "reload_weights", "kwargs": [1]}):
        assert http.post("/collective_rpc", body).status == 400
    assert http.post("/collective_rpc", raw=b"{nope").status == 400


def test_a_transfer_session_opens_and_ends_and_says_what_is_missing(http):
    assert http.post("/finish_weight_update").status >= 400  # no session is open
    assert http.post("/init_weight_transfer_engine", {"init_info": {}}).status == 200
    assert http.post("/start_weight_update").status == 200
    assert http.post("/start_weight_update").status >= 400
    empty = http.post("/finish_weight_update")
    assert empty.status == 400 and "brings no tensor" in empty.json()["error"]["message"], empty
    assert "begin one first" in http.post("/finish_weight_update").json()["error"]["message"], "it has ended"


def test_a_bucket_that_is_refused_ends_the_session_of_calls_that_name_none(http):
    assert http.post("/start_weight_update").status == 200
    assert http.post("/update_weights", {"update_info": {}}).status == 400
    lost = http.post("/finish_weight_update")
    assert (
        lost.status >= 400 and "http_proc answered 400 to a POST /update_weights" in lost.json()["error"]["message"]
    ), lost
    assert http.post("/start_weight_update").status == 200
    empty = http.post("/finish_weight_update")
    assert empty.status == 400 and "brings no tensor" in empty.json()["error"]["message"], empty


def test_update_weight_version_is_one_route_for_both_dialects(http, admin):
    """Without abort_all_requests the call is vLLM's, and ends no request."""
    keep = lambda: http.ok("POST", "/pause?mode=keep&clear_cache=false")  # noqa: E731
    (request,) = paused_amid(admin, one(http, max_new_tokens=LONG), pause=keep)
    answer = http.ok("POST", "/update_weight_version", {"new_version": "v9"}).json()
    assert answer["success"] is True and answer["new_version"] == "v9"
    http.ok("POST", "/resume")
    output = request.result()
    assert kind(output) == "length"
    assert output["meta_info"]["weight_versions"][-1]["version"] == "v9"
    assert http.post("/update_weight_version", {}).status == 400


def test_world_size_and_version(http):
    assert http.ok("GET", "/get_world_size").json() == {"world_size": 2}
    assert http.ok("GET", "/get_world_size?include_dp=false").json() == {"world_size": 1}
    assert http.ok("GET", "/get_world_size", {}).json() == {"world_size": 2}
    assert http.ok("GET", "/version").json()["version"].count(".") == 2


def test_scenario_23_every_request_on_every_replica_is_split(http, admin):
    http.ok("POST", "/update_weight_version", {"new_version": "x"})
    keep = lambda: http.ok("POST", "/pause?mode=keep&clear_cache=false")  # noqa: E731
    requests = paused_amid(admin, many(http, 8, "Tale {}", max_new_tokens=LONG), 8, keep)
    http.ok("POST", "/update_weight_version", {"new_version": "y"})
    http.ok("POST", "/resume")
    for output in finished(requests):
        assert [span["version"] for span in output["meta_info"]["weight_versions"]] == ["x", "y"]


def test_control_is_answered_at_once_while_the_engine_is_busy(http, admin, tmp_path):
    requests = running_amid(admin, many(http, 8, "Tale {}", max_new_tokens=LONG), 8)
    waits = []
    for _ in range(20):
        begin = time.monotonic()
        http.ok("GET", "/is_paused")
        waits.append(time.monotonic() - begin)
    assert sorted(waits)[10] < 0.5
    finished(requests)
