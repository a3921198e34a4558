#include "http_proc/observe/metrics_parts.h"

#include "http_proc/observe/expert_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace pitstop::http::metrics {
namespace {

struct CheckpointRow {
    std::string_view name{};
    std::string_view type{};
    std::string_view help{};
    std::int64_t messages::CheckpointStatus::*count = nullptr;
};
using Checkpoints = messages::CheckpointStatus;
constexpr std::array kCheckpointRows{
    CheckpointRow{
        "pitstop_checkpoint_places",
        "gauge",
        "Places for checkpoints of recurrent states, on every rank.",
        &Checkpoints::places_total},
    CheckpointRow{
        "pitstop_checkpoint_places_free",
        "gauge",
        "Free places for checkpoints of recurrent states.",
        &Checkpoints::places_free},
    CheckpointRow{
        "pitstop_checkpoints_saved_total",
        "counter",
        "Checkpoints of recurrent states that were saved.",
        &Checkpoints::saved_total},
    CheckpointRow{
        "pitstop_checkpoints_restored_total",
        "counter",
        "Requests that continued from a checkpoint.",
        &Checkpoints::restored_total},
    CheckpointRow{
        "pitstop_checkpoints_evicted_total",
        "counter",
        "Checkpoints dropped to make room for new ones.",
        &Checkpoints::evicted_total},
    CheckpointRow{
        "pitstop_replayed_tokens_total",
        "counter",
        "Cached prompt tokens computed again because no checkpoint had the state after them.",
        &Checkpoints::replayed_tokens_total},
};

struct AdapterRow {
    std::string_view name{};
    std::string_view type{};
    std::string_view help{};
    std::int64_t messages::AdapterStatus::*count = nullptr;
};
using Adapter = messages::AdapterStatus;
constexpr std::array kAdapterRows{
    AdapterRow{
        "pitstop_adapter_requests_total",
        "counter",
        "Requests that named the adapter since it was last unloaded.",
        &Adapter::requests_total},
    AdapterRow{
        "pitstop_adapter_output_tokens_total",
        "counter",
        "Output tokens of the adapter's requests since it was last unloaded.",
        &Adapter::output_tokens_total},
    AdapterRow{
        "pitstop_adapter_loads_total",
        "counter",
        "Versions loaded under the name since it was last unloaded.",
        &Adapter::loads_total},
    AdapterRow{
        "pitstop_adapter_evictions_total",
        "counter",
        "Evictions of versions under the name since it was last unloaded.",
        &Adapter::evictions_total},
    AdapterRow{
        "pitstop_adapter_open_requests",
        "gauge",
        "Open requests that use the adapter's serving version.",
        &Adapter::num_requests},
    AdapterRow{
        "pitstop_adapter_older_open_requests",
        "gauge",
        "Open requests that use an older version of the adapter.",
        &Adapter::num_older},
    AdapterRow{
        "pitstop_adapter_bytes",
        "gauge",
        "Bytes of the adapter's resident versions on all ranks.",
        &Adapter::bytes},
};

// Calls `write` with the labels of each replica's adapters.
template <class F>
void for_each_adapter(const messages::StatusReply& status, F&& write) {
    for (const messages::ReplicaStatus& replica : status.replicas) {
        for (const Adapter& each : replica.adapters) {
            write(
                fmt::format(
                    "{},adapter=\"{}\"", own_labels({}, replica), escaped(each.adapter.name)
                ),
                each
            );
        }
    }
}

struct DraftRow {
    std::string_view own;
    std::string_view vllm;  // empty: vLLM has no such counter
    std::string_view help;
    std::int64_t messages::DraftCounts::*count;
};
constexpr std::array kDraftRows{
    DraftRow{
        "pitstop_sampling_passes_total",
        "",
        "Passes that sampled for a request, with or without drafts, counted per request.",
        &messages::DraftCounts::passes},
    DraftRow{
        "pitstop_draft_rows_total",
        "vllm:spec_decode_num_drafts_total",
        "Passes that verified drafts of a request, counted per request.",
        &messages::DraftCounts::rows},
    DraftRow{
        "pitstop_draft_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "Draft tokens that passes verified.",
        &messages::DraftCounts::drafted},
    DraftRow{
        "pitstop_draft_tokens_accepted_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "Verified draft tokens that were the request's next tokens.",
        &messages::DraftCounts::accepted},
};

// Writes the counts of loads, once there was one.
void write_adapter_updates(Writer& out, const messages::StatusReply& status) {
    if (status.adapter_updates_total + status.adapter_updates_failed_total == 0) return;
    out.metric(
        "pitstop_adapter_updates_total",
        "counter",
        "Loads, rollbacks and unloads of adapters that took effect."
    );
    out.sample("", number(status.adapter_updates_total));
    out.metric(
        "pitstop_adapter_updates_failed_total",
        "counter",
        "Loads, rollbacks and unloads of adapters that failed or were refused."
    );
    out.sample("", number(status.adapter_updates_failed_total));
}

}  // namespace

void write_checkpoints(Writer& out, const messages::StatusReply& status) {
    const auto has_state = [](const messages::ReplicaStatus& r) {
        return r.checkpoints.has_value();
    };
    if (std::ranges::none_of(status.replicas, has_state)) return;
    for (const CheckpointRow& row : kCheckpointRows) {
        out.metric(row.name, row.type, row.help);
        for (const messages::ReplicaStatus& r : status.replicas) {
            if (r.checkpoints) out.sample(own_labels({}, r), number((*r.checkpoints).*row.count));
        }
    }
}

void write_adapters(Writer& out, const messages::StatusReply& status) {
    write_adapter_updates(out, status);
    const auto is_lost = [](const messages::ReplicaStatus& r) { return !r.lost_adapters.empty(); };
    if (std::ranges::any_of(status.replicas, is_lost)) {
        out.metric(
            "pitstop_adapters_lost", "gauge", "Adapters lost in a restart and not loaded since."
        );
        for (const messages::ReplicaStatus& r : status.replicas)
            out.sample(own_labels({}, r), number(std::ssize(r.lost_adapters)));
    }
    const auto has_some = [](const messages::ReplicaStatus& r) { return !r.adapters.empty(); };
    if (std::ranges::none_of(status.replicas, has_some)) return;
    for (const AdapterRow& row : kAdapterRows) {
        out.metric(row.name, row.type, row.help);
        for_each_adapter(status, [&](const std::string& labels, const Adapter& each) {
            out.sample(labels, number(each.*row.count));
        });
    }
    out.metric("pitstop_adapter_version", "gauge", "Number of the adapter's version that serves.");
    for_each_adapter(status, [&](const std::string& labels, const Adapter& each) {
        out.sample(labels, number(raw(each.adapter.version)));
    });
    out.metric(
        "pitstop_adapter_info",
        "gauge",
        "Label and digest of the adapter's version that serves; always 1."
    );
    for_each_adapter(status, [&](const std::string& labels, const Adapter& each) {
        const std::string label = escaped(each.adapter.label);
        out.sample(
            fmt::format("{},label=\"{}\",digest=\"{}\"", labels, label, each.adapter.digest), 1
        );
    });
}

void write_drafts(Writer& out, std::string_view model, const messages::StatusReply& status) {
    const auto speculates = [](const messages::ReplicaStatus& r) { return r.drafts.has_value(); };
    if (std::ranges::none_of(status.replicas, speculates)) return;
    const auto write = [&](std::string_view name, const DraftRow& row, auto labels) {
        if (name.empty()) return;
        out.metric(name, "counter", row.help);
        for (const messages::ReplicaStatus& r : status.replicas)
            if (r.drafts) out.sample(labels(model, r), number((*r.drafts).*row.count));
    };
    for (const DraftRow& row : kDraftRows) {
        write(row.own, row, own_labels);
        write(row.vllm, row, vllm_labels);
    }
}

void write_experts(Writer& out, const messages::StatusReply& status) {
    if (!status.expert_load) return;
    const std::vector<LayerLoad> loads = layer_loads(*status.expert_load);
    if (loads.empty()) return;
    const auto family =
        [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
            out.metric(name, type, help);
            for (const LayerLoad& load : loads)
                out.sample(fmt::format("layer=\"{}\"", load.layer), value(load));
        };
    family(
        "pitstop_expert_tokens_total",
        "counter",
        "Pairs of a token and an expert that the layer computed.",
        [](const LayerLoad& load) { return number(load.tokens); }
    );
    family(
        "pitstop_expert_load_max_ratio",
        "gauge",
        "Tokens of the layer's busiest expert, divided by the mean of its experts.",
        [](const LayerLoad& load) { return load.busiest; }
    );
    family(
        "pitstop_expert_load_min_ratio",
        "gauge",
        "Tokens of the layer's least busy expert, divided by the mean of its experts.",
        [](const LayerLoad& load) { return load.least; }
    );
    family(
        "pitstop_experts_idle",
        "gauge",
        "Experts of the layer that have computed no token.",
        [](const LayerLoad& load) { return number(load.num_idle); }
    );
}

}  // namespace pitstop::http::metrics
