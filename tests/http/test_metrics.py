"""/metrics, and the load that routers ask for."""

import re
import threading
import time

import pytest

from process_tree import ROOT, wait_until

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


def exposition(http, admin):
    """/metrics of a tree with samples in every family: requests, a pause, an update."""
    body = {"prompt": "Once", "max_tokens": 3, "stream": True}
    assert http.post("/v1/completions", body).status == 200
    source = {"kind": "disk", "path": str(ROOT / "launch/models/stories")}
    # Characters that a label may contain, and that would end it if they were not escaped.
    assert admin.call("update_weights", update={"source": source, "label": 'step "7" \\ one'})["ok"]
    admin.call("pause_generation", mode="in_place")
    try:
        return http.get("/metrics").body.decode()
    finally:
        admin.call("continue_generation")


def test_prometheus_reads_every_line(http, admin):
    parser = pytest.importorskip("prometheus_client.parser")
    text = exposition(http, admin)
    families = list(parser.text_string_to_metric_families(text))
    names = [family.name for family in families]  # a counter without its _total
    assert sorted(names) == sorted(set(names)), "a family twice"
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert sum(len(family.samples) for family in families) == len(lines)
    assert all(family.type in ("gauge", "counter", "histogram") and family.documentation for family in families)
    info = next(family for family in families if family.name == "pitstop_weight_info")
    assert info.samples[0].labels["label"] == 'step "7" \\ one'


def test_the_strict_parser_of_openmetrics_reads_it_too(http, admin):
    """OpenMetrics' parser refuses what Prometheus' parser overlooks: clashing families, separated samples, bad
    histograms."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    # OpenMetrics names a counter's family without the suffix, and ends with a line of its own.
    text = re.sub(r"(?m)^# (HELP|TYPE) (\S+)_total ", r"# \1 \2 ", exposition(http, admin)) + "# EOF\n"
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["pitstop_paused_seconds"].type == "counter"
    assert families["pitstop_pause_age_seconds"].type == "gauge"
    assert families["pitstop_pause_age_seconds"].samples[0].value > 0


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
    # Tokens that arrived together with the first one have no time of their own.
    assert 0 <= grown("vllm:inter_token_latency_seconds_count") <= 6
    assert grown("sglang:e2e_request_latency_seconds_count") == 1


def test_the_schedulers_times_are_those_of_its_queue_and_its_passes(http, admin):
    before = samples(http)
    asked = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True}
    admin.call("pause_generation", mode="retract")
    try:
        thread = threading.Thread(target=http.post, args=("/v1/completions", asked))
        thread.start()
        wait_until(lambda: admin.call("status")["replicas"][0]["num_waiting"] == 1, "it to wait")
        since = time.monotonic()
        time.sleep(0.2)
        waited_s = time.monotonic() - since
    finally:
        admin.call("continue_generation")
    thread.join()
    after = samples(http)

    def grown(name, *labels):
        return value(after, name, *labels) - value(before, name, *labels)

    prefill = 'stage="prefill_forward"'
    for queue, stage in (("sglang:queue_time_seconds", "sglang:per_stage_req_latency_seconds"),
                         ("vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds")):  # fmt: skip
        labels = [prefill] if stage.startswith("sglang") else []
        assert grown(f"{queue}_count") == grown(f"{stage}_count", *labels) == 1
        assert grown(f"{queue}_sum") >= waited_s, "the whole pause is the queue's"
        assert 0 < grown(f"{stage}_sum", *labels) <= grown("vllm:request_inference_time_seconds_sum")
    whole = grown("vllm:e2e_request_latency_seconds_sum")
    parts = grown("vllm:request_queue_time_seconds_sum") + grown("vllm:request_inference_time_seconds_sum")
    assert parts <= whole, "the front end saw all of it"


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


def test_a_streams_decoding_is_timed_as_a_whole_and_by_token(http):
    names = (
        "vllm:request_decode_time_seconds",
        "sglang:request_decode_time_seconds",
        "vllm:request_time_per_output_token_seconds",
        "sglang:time_per_output_token_seconds",
    )
    before = samples(http)
    body = {"prompt": "Once", "max_tokens": 5, "ignore_eos": True}
    http.post("/v1/completions", {**body, "stream": True})
    http.post("/v1/completions", body)  # not a stream: the server sees only the whole answer
    after = samples(http)
    for name in names:
        assert value(after, name + "_count") - value(before, name + "_count") == 1
    whole = value(after, names[0] + "_sum") - value(before, names[0] + "_sum")
    each = value(after, names[2] + "_sum") - value(before, names[2] + "_sum")
    assert whole >= 0 and each == pytest.approx(whole / 4)
