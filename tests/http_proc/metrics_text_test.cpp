// /metrics from a status: the text format, and the metrics of each dashboard.
#include "http_proc/observe/metrics_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

namespace pitstop::http {
namespace {

messages::ReplicaStatus replica(int number) {
    messages::ReplicaStatus one;
    one.replica = ReplicaId{number};
    one.page_size = 16;
    one.pages_total = 100;
    one.pages_free = 50;
    one.pages_cached = 25;
    one.memory = {
        {.tag = messages::MemoryTag::kWeights, .resident_bytes = 1000},
        {.tag = messages::MemoryTag::kKvCache, .resident_bytes = 2000}};
    return one;
}

struct Page {
    std::map<std::string, std::string> samples{};  // "name{labels}" -> value
    std::map<std::string, std::string> types{};

    [[nodiscard]] std::string of(const std::string& sample) const {
        const auto found = samples.find(sample);
        return found == samples.end() ? "none: " + sample : found->second;
    }
    [[nodiscard]] bool has(std::string_view part) const {
        return std::ranges::any_of(samples, [&](const auto& sample) {
            return sample.first.find(part) != std::string::npos;
        });
    }
};

// Reads by the format's rules: TYPE once, before the first sample of its metric.
Page page_of(const messages::StatusReply& status, const RequestMetrics& requests = {}) {
    messages::HelloReply hello;
    hello.model = "a \"quoted\" \\ name";
    std::istringstream lines(metrics_text(status, hello, requests, /*num_generating=*/3));
    Page page;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string mark;
        std::string what;
        std::string name;
        std::string type;
        if (line.starts_with("# TYPE ")) {
            words >> mark >> what >> name >> type;
            EXPECT_TRUE(page.types.emplace(name, type).second) << name << " twice";
            continue;
        }
        if (line.starts_with("#")) continue;
        const std::size_t end = line.rfind(' ');
        const std::string base = line.substr(0, line.find('{'));
        const bool is_part = page.types.contains(base.substr(0, base.rfind('_')));
        EXPECT_TRUE(page.types.contains(base) || is_part) << line;
        EXPECT_TRUE(page.samples.emplace(line.substr(0, end), line.substr(end + 1)).second) << line;
    }
    return page;
}

constexpr const char* kVllm = "{model_name=\"a \\\"quoted\\\" \\\\ name\",engine=\"";

// Makes the name of one engine's sample under vLLM's names; `rest` begins with the engine's number.
std::string of_vllm(std::string_view metric, std::string_view rest) {
    return fmt::format("{}{}{}", metric, kVllm, rest);
}

TEST(MetricsText, HasASamplePerReplicaAndEscapesLabels) {
    messages::StatusReply status;
    status.replicas = {replica(0), replica(1)};
    status.replicas[1].num_running = 4;
    const Page page = page_of(status);
    EXPECT_EQ(page.of(of_vllm("vllm:num_requests_running", "0\"}")), "0");
    EXPECT_EQ(page.of(of_vllm("vllm:num_requests_running", "1\"}")), "4");
    EXPECT_EQ(page.of(of_vllm("vllm:kv_cache_usage_perc", "0\"}")), "0.25");
    EXPECT_EQ(page.of("pitstop_http_requests{}"), "3");
    EXPECT_EQ(page.types.at("sglang:gen_throughput"), "gauge");
    EXPECT_EQ(page.types.at("sglang:num_requests_total"), "counter");
}

TEST(MetricsText, SaysWhatIsAsleep) {
    struct Case {
        messages::MemoryState weights{};
        std::int64_t host_bytes = 0;
        messages::MemoryState kv{};
        std::string state{};
    };
    using enum messages::MemoryState;
    for (const Case& one :
         {Case{kResident, 0, kResident, "awake"},
          Case{kReleased, 1000, kReleased, "weights_offloaded"},
          Case{kReleased, 0, kReleased, "discard_all"},
          Case{kReleased, 0, kResident, "discard_all"},
          Case{kResident, 0, kReleased, "weights_offloaded"}}) {
        messages::StatusReply status;
        status.replicas = {replica(0)};
        status.replicas[0].memory[0].state = one.weights;
        status.replicas[0].memory[0].host_bytes = one.host_bytes;
        status.replicas[0].memory[1].state = one.kv;
        const Page page = page_of(status);
        for (const std::string state : {"awake", "weights_offloaded", "discard_all"}) {
            EXPECT_EQ(
                page.of(
                    "vllm:engine_sleep_state" + (kVllm + ("0\",sleep_state=\"" + state + "\"}"))
                ),
                state == one.state ? "1" : "0"
            ) << "wanted "
              << one.state;
        }
    }
}

TEST(MetricsText, HasTheLastUpdatesWaterfallOnceThereIsOne) {
    messages::StatusReply status;
    status.replicas = {replica(0)};
    EXPECT_FALSE(page_of(status).has("pitstop_update_phase_seconds"));
    status.updates.push_back(
        {.what = "update_weights", .ok = true, .bytes = 5, .seconds = {.stage = {.verify_s = 0.5}}}
    );
    status.updates.push_back(
        {.what = "update_weights", .ok = false, .seconds = {.stage = {.verify_s = 0.25}}}
    );
    const Page page = page_of(status);
    EXPECT_EQ(
        page.of(
            "pitstop_update_phase_seconds{what=\"update_weights\",ok=\"false\",phase=\"verify\"}"
        ),
        "0.25"
    );
}

TEST(MetricsText, HistogramsAreCumulativeAndEndWithInfinity) {
    RequestMetrics requests;
    requests.whole_request.add(0.02);
    requests.whole_request.add(1e9);
    messages::StatusReply status;
    status.replicas = {replica(0)};
    const Page page = page_of(status, requests);
    const std::string name = "vllm:e2e_request_latency_seconds";
    EXPECT_EQ(page.types.at(name), "histogram");
    EXPECT_EQ(page.of(of_vllm(name + "_bucket", "0\",le=\"0.01\"}")), "0");
    EXPECT_EQ(page.of(of_vllm(name + "_bucket", "0\",le=\"0.05\"}")), "1");
    EXPECT_EQ(page.of(of_vllm(name + "_bucket", "0\",le=\"7680\"}")), "1");
    EXPECT_EQ(page.of(of_vllm(name + "_bucket", "0\",le=\"+Inf\"}")), "2");
    EXPECT_EQ(page.of(of_vllm(name + "_count", "0\"}")), "2");
}

TEST(MetricsText, CheckpointsAreOfModelsWithStateOnly) {
    messages::StatusReply status;
    status.replicas = {replica(0), replica(1)};
    EXPECT_FALSE(page_of(status).has("checkpoint"));
    EXPECT_FALSE(page_of(status).has("replayed"));
    status.replicas[1].checkpoints = messages::CheckpointStatus{
        .places_total = 9,
        .places_free = 4,
        .saved_total = 300,
        .restored_total = 200,
        .evicted_total = 100,
        .replayed_tokens_total = 5000};
    const Page page = page_of(status);
    EXPECT_EQ(page.of("pitstop_checkpoint_places{replica=\"1\"}"), "9");
    EXPECT_EQ(page.of("pitstop_checkpoint_places_free{replica=\"1\"}"), "4");
    EXPECT_EQ(page.of("pitstop_checkpoints_saved_total{replica=\"1\"}"), "300");
    EXPECT_EQ(page.of("pitstop_checkpoints_restored_total{replica=\"1\"}"), "200");
    EXPECT_EQ(page.of("pitstop_checkpoints_evicted_total{replica=\"1\"}"), "100");
    EXPECT_EQ(page.of("pitstop_replayed_tokens_total{replica=\"1\"}"), "5000");
    EXPECT_FALSE(page.has("pitstop_checkpoint_places{replica=\"0\"}"));
    EXPECT_EQ(page.types.at("pitstop_replayed_tokens_total"), "counter");
}

TEST(MetricsText, CountsRequestsTokensAndLoadsOfEachAdapter) {
    messages::StatusReply status;
    status.replicas = {replica(0), replica(1)};
    EXPECT_FALSE(page_of(status).has("pitstop_adapter"));
    status.replicas[1].adapters = {
        {.adapter = {.name = "a\"b", .version = Epoch{7}, .label = "step 7", .digest = "d7"},
         .num_requests = 2,
         .num_older = 1,
         .bytes = 4096,
         .loads_total = 3,
         .requests_total = 50,
         .output_tokens_total = 900}};
    status.replicas[0].lost_adapters = {{.adapter = {.name = "c"}}};
    const Page page = page_of(status);
    const std::string labels = "{replica=\"1\",adapter=\"a\\\"b\"";
    EXPECT_EQ(page.of("pitstop_adapter_requests_total" + labels + "}"), "50");
    EXPECT_EQ(page.of("pitstop_adapter_output_tokens_total" + labels + "}"), "900");
    EXPECT_EQ(page.of("pitstop_adapter_loads_total" + labels + "}"), "3");
    EXPECT_EQ(page.of("pitstop_adapter_open_requests" + labels + "}"), "2");
    EXPECT_EQ(page.of("pitstop_adapter_older_open_requests" + labels + "}"), "1");
    EXPECT_EQ(page.of("pitstop_adapter_bytes" + labels + "}"), "4096");
    EXPECT_EQ(page.of("pitstop_adapter_version" + labels + "}"), "7");
    EXPECT_EQ(page.of("pitstop_adapter_info" + labels + ",label=\"step 7\",digest=\"d7\"}"), "1");
    EXPECT_EQ(page.types.at("pitstop_adapter_requests_total"), "counter");
    EXPECT_EQ(page.types.at("pitstop_adapter_bytes"), "gauge");
    EXPECT_EQ(page.of("pitstop_adapters_lost{replica=\"0\"}"), "1");
    EXPECT_EQ(page.of("pitstop_adapters_lost{replica=\"1\"}"), "0");
}

TEST(MetricsText, UpdatesOfAdaptersAreCountedApart) {
    messages::StatusReply status;
    status.replicas = {replica(0)};
    status.updates_total = 2;
    status.adapter_updates_total = 30;
    status.adapter_updates_failed_total = 4;
    status.updates.push_back({.what = "update_weights", .ok = true, .bytes = 5});
    status.adapter_updates.push_back(
        {.what = "update_weights", .ok = true, .bytes = 7, .adapter = "a"}
    );
    const Page page = page_of(status);
    EXPECT_EQ(page.of("pitstop_updates_total{}"), "2");
    EXPECT_EQ(page.of("pitstop_adapter_updates_total{}"), "30");
    EXPECT_EQ(page.of("pitstop_adapter_updates_failed_total{}"), "4");
    EXPECT_EQ(page.of("pitstop_update_bytes{what=\"update_weights\",ok=\"true\"}"), "5");
    EXPECT_EQ(page.types.at("pitstop_adapter_updates_total"), "counter");
}

TEST(MetricsText, DraftsAreThereWithSpeculationOnlyAndByVllmsNamesToo) {
    messages::StatusReply status;
    status.replicas = {replica(0), replica(1)};
    EXPECT_FALSE(page_of(status).has("draft"));
    EXPECT_FALSE(page_of(status).has("spec_decode"));
    status.replicas[1].drafts =
        messages::DraftCounts{.passes = 90, .rows = 20, .drafted = 70, .accepted = 50};
    const Page page = page_of(status);
    EXPECT_EQ(page.of("pitstop_sampling_passes_total{replica=\"1\"}"), "90");
    EXPECT_EQ(page.of("pitstop_draft_rows_total{replica=\"1\"}"), "20");
    EXPECT_EQ(page.of("pitstop_draft_tokens_total{replica=\"1\"}"), "70");
    EXPECT_EQ(page.of("pitstop_draft_tokens_accepted_total{replica=\"1\"}"), "50");
    EXPECT_EQ(page.types.at("vllm:spec_decode_num_drafts_total"), "counter");
    EXPECT_EQ(page.types.at("vllm:spec_decode_num_draft_tokens_total"), "counter");
    EXPECT_EQ(page.types.at("vllm:spec_decode_num_accepted_tokens_total"), "counter");
}

TEST(KvUse, IsWithoutWhatTheCacheAloneHolds) {
    messages::ReplicaStatus one = replica(0);
    EXPECT_EQ(kv_use_of(one).used_tokens, 25 * 16);
    EXPECT_EQ(kv_use_of(one).total_tokens, 1600);
    EXPECT_DOUBLE_EQ(kv_use_of(one).usage, 0.25);
    EXPECT_DOUBLE_EQ(kv_use_of(one).hit_rate, 0);
    one.prompt_tokens_total = 8;
    one.cached_tokens_total = 2;
    EXPECT_DOUBLE_EQ(kv_use_of(one).hit_rate, 0.25);
    // Until a worker has reported the total, the usage is 0.
    EXPECT_DOUBLE_EQ(kv_use_of(messages::ReplicaStatus{}).usage, 0);
}

}  // namespace
}  // namespace pitstop::http
