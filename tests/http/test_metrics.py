"""/metrics, and what routers ask of load."""

import re

import pytest

SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*)\} (\S+)$')


def samples(http):
    """{(name, labels): value}, checked to be Prometheus' text format."""
    answer = http.get("/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found, types = {}, {}
    for line in answer.body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} twice"
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.match(line)
            assert match, line
            name, labels, value = match.groups()
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in types or types.get(base) == "histogram", line
            assert (name, labels) not in found, line
            found[name, labels] = float(value)
    return found


def value(found, name, *labels):
    values = [v for (n, ls), v in found.items() if n == name and all(label in ls for label in labels)]
    assert len(values) == 1, (name, labels, values)
    return values[0]


def test_counters_follow_requests(http):
    before = samples(http)
    answer = http.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True})
    assert answer.status == 200
    after = samples(http)

    def grown(name, *labels):
        return value(after, name, *labels) - value(before, name, *labels)

    for engine in ("sglang:", "vllm:"):
        assert grown(f"{engine}generation_tokens_total") == 5
        assert grown(f"{engine}prompt_tokens_total") == 4
        assert grown(f"{engine}e2e_request_latency_seconds_count") == 1
    assert grown("sglang:num_requests_total") == 1
    assert grown("vllm:request_success_total", 'finished_reason="length"') == 1
    assert grown("vllm:request_generation_tokens_sum") == 5
    assert value(after, "sglang:num_running_reqs") == 0 and value(after, "vllm:num_requests_waiting") == 0


def test_a_stream_is_timed_token_by_token(http):
    before = samples(http)
    http.post("/v1/completions", {"prompt": "Once", "max_tokens": 7, "ignore_eos": True, "stream": True})
    after = samples(http)

    def grown(name):
        return value(after, name) - value(before, name)

    assert grown("vllm:time_to_first_token_seconds_count") == 1
    # Tokens that came together with the first one have no time of their own.
    assert 0 <= grown("vllm:inter_token_latency_seconds_count") <= 6
    assert grown("sglang:e2e_request_latency_seconds_count") == 1


def test_a_histogram_is_cumulative(http):
    found = samples(http)
    buckets = [v for (name, _), v in found.items() if name == "vllm:e2e_request_latency_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == value(found, "vllm:e2e_request_latency_seconds_count")


def test_a_pause_is_seen(http, admin):
    assert value(samples(http), "pitstop_paused") == 0
    admin.call("pause_generation", mode="retract")
    try:
        found = samples(http)
        assert value(found, "pitstop_paused") == 1
        assert value(found, "pitstop_state", 'pause_mode="retract"') == 1
        assert value(found, "sglang:gen_throughput") == 0
    finally:
        admin.call("continue_generation")
    assert value(samples(http), "pitstop_pauses_total") >= 1


def test_memory_and_version_are_there(http):
    found = samples(http)
    assert value(found, "pitstop_memory_bytes", 'tag="weights"') > 1e6
    assert value(found, "pitstop_memory_bytes", 'tag="kv_cache"') > 1e6
    assert value(found, "pitstop_weight_info", "digest=") == 1
    assert value(found, "vllm:engine_sleep_state", 'sleep_state="awake"') == 1
    assert 0 <= value(found, "sglang:token_usage") <= 1


def test_loads_in_sglangs_shapes(http):
    (load,) = http.get("/get_load").json
    assert load["dp_rank"] == 0 and load["num_reqs"] == 0 and load["ts_tic"] > 0
    answer = http.get("/v1/loads?include=core,queues").json
    (core,) = answer["loads"]
    assert core["num_running_reqs"] == 0 and core["queues"] == {
        "waiting": 0, "grammar": 0, "paused": 0, "retracted": 0,
    }  # fmt: skip
    assert core["max_total_num_tokens"] > 0 and answer["num_accelerators"] == 1
    assert "queues" not in http.get("/v1/loads").json["loads"][0]
    assert http.get("/v1/loads?dp_rank=0").json["loads"] == http.get("/v1/loads").json["loads"]
    assert http.get("/v1/loads?format=prometheus").body.startswith(b"# HELP")


@pytest.mark.parametrize("query", ["include=nonsense", "dp_rank=1", "dp_rank=x", "format=xml"])
def test_a_bad_question_about_load_is_a_400(http, query):
    assert http.get(f"/v1/loads?{query}").status == 400


def test_load_in_vllms_shape(http):
    assert http.get("/load").json == {"server_load": 0}
