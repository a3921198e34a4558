#include "http_proc/observe/metrics_text.h"

#include "http_proc/format/versions.h"
#include "http_proc/observe/metrics_parts.h"
#include "http_proc/observe/metrics_tables.h"
#include "http_proc/observe/metrics_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using metrics::escaped;
using metrics::number;
using metrics::own_labels;
using metrics::vllm_labels;
using metrics::Writer;

using Labels = std::string (*)(std::string_view model, const messages::ReplicaStatus& replica);

std::string sglang_labels(std::string_view model, const messages::ReplicaStatus& replica) {
    return fmt::format(
        "model_name=\"{}\",engine_type=\"unified\",tp_rank=\"0\",pp_rank=\"0\",dp_rank=\"{}\"",
        model,
        raw(replica.replica)
    );
}
void write_table(
    Writer& out,
    std::span<const metrics::PerReplica> table,
    Labels labels,
    std::string_view model,
    const messages::StatusReply& status
) {
    for (const metrics::PerReplica& row : table) {
        out.metric(row.name, row.type, row.help);
        for (const messages::ReplicaStatus& replica : status.replicas)
            out.sample(labels(model, replica), row.value(replica));
    }
}

void write_sglang_rest(Writer& out, std::string_view model, const messages::StatusReply& status) {
    out.metric("sglang:cached_tokens_total", "counter", "Prompt tokens found in the prefix cache.");
    for (const messages::ReplicaStatus& replica : status.replicas) {
        out.sample(
            sglang_labels(model, replica) + ",cache_source=\"device\"",
            number(replica.cached_tokens_total)
        );
    }
    const auto last = std::find_if(
        status.updates.rbegin(),
        status.updates.rend(),
        [](const messages::UpdateRecord& u) { return u.ok; }
    );
    if (last == status.updates.rend()) return;
    out.metric(
        "sglang:weight_load_duration_seconds",
        "gauge",
        "Seconds that the last successful update of the model's weights took."
    );
    out.sample(fmt::format("model_name=\"{}\",source=\"disk\"", model), last->seconds.total_s);
}

void write_vllm_rest(Writer& out, std::string_view model, const messages::StatusReply& status) {
    out.metric("vllm:request_success_total", "counter", "Requests that ended, by finish reason.");
    for (const messages::ReplicaStatus& replica : status.replicas) {
        for (const messages::FinishReason reason :
             {messages::FinishReason::kStop,
              messages::FinishReason::kLength,
              messages::FinishReason::kAbort}) {
            out.sample(
                fmt::format(
                    "{},finished_reason=\"{}\"", vllm_labels(model, replica), name_of(reason)
                ),
                number(metrics::finished(replica, reason))
            );
        }
    }
    out.metric("vllm:engine_sleep_state", "gauge", "1 for the state that the memory has, else 0.");
    for (const messages::ReplicaStatus& replica : status.replicas) {
        const bool is_awake =
            std::ranges::all_of(replica.memory, [](const messages::TagMemory& tag) {
                return tag.state == messages::MemoryState::kResident;
            });
        // If only the KV is released, a wake restores everything, so nothing counts as discarded.
        const bool is_discarded =
            std::ranges::any_of(replica.memory, [](const messages::TagMemory& tag) {
                return tag.tag == messages::MemoryTag::kWeights &&
                       tag.state != messages::MemoryState::kResident && tag.host_bytes == 0;
            });
        const auto sample = [&](std::string_view state, bool holds) {
            out.sample(
                fmt::format("{},sleep_state=\"{}\"", vllm_labels(model, replica), state), holds
            );
        };
        sample("awake", is_awake);
        sample("weights_offloaded", !is_awake && !is_discarded);
        sample("discard_all", is_discarded);
    }
    out.metric(
        "vllm:cache_config_info", "gauge", "Page size and number of pages of the KV pool; always 1."
    );
    for (const messages::ReplicaStatus& replica : status.replicas) {
        out.sample(
            fmt::format(
                "{},block_size=\"{}\",num_gpu_blocks=\"{}\"",
                vllm_labels(model, replica),
                replica.page_size,
                replica.pages_total
            ),
            1
        );
    }
}

void write_replicas(Writer& out, const messages::StatusReply& status) {
    out.metric(
        "pitstop_weight_info",
        "gauge",
        "Label and digest of the weight version that serves; always 1."
    );
    for (const messages::ReplicaStatus& r : status.replicas) {
        out.sample(
            fmt::format(
                "{},label=\"{}\",digest=\"{}\"",
                own_labels({}, r),
                escaped(version_name(r.epoch, r.label)),
                r.digest
            ),
            1
        );
    }
    out.metric("pitstop_state", "gauge", "State and pause mode of the replica; always 1.");
    for (const messages::ReplicaStatus& r : status.replicas) {
        out.sample(
            fmt::format(
                "{},state=\"{}\",pause_mode=\"{}\"",
                own_labels({}, r),
                name_of(r.state),
                r.pause_mode
            ),
            1
        );
    }
    out.metric("pitstop_memory_bytes", "gauge", "Resident bytes of all ranks, by tag and state.");
    for (const messages::ReplicaStatus& r : status.replicas) {
        for (const messages::TagMemory& tag : r.memory) {
            out.sample(
                fmt::format(
                    "{},tag=\"{}\",state=\"{}\"",
                    own_labels({}, r),
                    name_of(tag.tag),
                    name_of(tag.state)
                ),
                number(tag.resident_bytes)
            );
        }
    }
    out.metric(
        "pitstop_not_finite_requests_total",
        "counter",
        "Requests ended because of infinities or NaNs, by kind."
    );
    for (const messages::ReplicaStatus& r : status.replicas) {
        for (const messages::NotFiniteCount& count : r.not_finite) {
            out.sample(
                fmt::format("{},kind=\"{}\"", own_labels({}, r), name_of(count.kind)),
                number(count.requests)
            );
        }
    }
    out.metric(
        "pitstop_kv_hit_tokens_total",
        "counter",
        "Tokens found in the prefix cache, by lag: their version's age in epochs."
    );
    for (const messages::ReplicaStatus& r : status.replicas) {
        for (const messages::CacheHits& hits : r.cache_hits) {
            out.sample(
                fmt::format("{},lag=\"{}\"", own_labels({}, r), hits.lag), number(hits.tokens)
            );
        }
    }
}

// Writes the metrics with one sample for the whole tree.
void write_tree(Writer& out, const messages::StatusReply& status, int num_generating) {
    const auto one =
        [&](std::string_view name, std::string_view type, std::string_view help, double value) {
            out.metric(name, type, help);
            out.sample("", value);
        };
    one("pitstop_updates_total",
        "counter",
        "Updates, rollbacks and commits of the model's weights that took effect.",
        number(status.updates_total));
    one("pitstop_updates_failed_total",
        "counter",
        "Updates, rollbacks and commits of the model's weights that failed.",
        number(status.updates_failed_total));
    one("pitstop_open_requests",
        "gauge",
        "Requests that are not fully answered, of all clients.",
        number(status.open_requests));
    one("pitstop_http_requests",
        "gauge",
        "Requests that are not fully answered, of this HTTP process.",
        num_generating);
    one("pitstop_refused_total",
        "counter",
        "Messages that the doors refused.",
        number(status.refused_total));
    one("pitstop_uptime_seconds", "gauge", "Seconds since the tree was ready.", status.uptime_s);
}

// Writes the metrics of the newest update of the model's weights.
void write_update(Writer& out, const messages::StatusReply& status) {
    if (status.updates.empty()) return;
    const messages::UpdateRecord& last = status.updates.back();
    const std::string labels =
        fmt::format("what=\"{}\",ok=\"{}\"", last.what, last.ok ? "true" : "false");
    out.metric(
        "pitstop_update_phase_seconds",
        "gauge",
        "Seconds of each phase of the last update of the model's weights."
    );
    messages::UpdateSeconds(last.seconds)
        .fields_in([&](std::string_view name, double seconds, std::string_view /*about*/) {
            name.remove_suffix(std::string_view("_s").size());
            out.sample(fmt::format("{},phase=\"{}\"", labels, name), seconds);
        });
    out.metric(
        "pitstop_update_age_seconds",
        "gauge",
        "Seconds since the last update of the model's weights was answered."
    );
    out.sample(labels, last.age_s);
    out.metric(
        "pitstop_update_bytes",
        "gauge",
        "Bytes that the last update of the model's weights wrote, on all ranks."
    );
    out.sample(labels, number(last.bytes));
}

void write_requests(Writer& out, std::string_view model, const RequestMetrics& requests) {
    struct Named {
        std::string_view sglang;
        std::string_view vllm;
        std::string_view help;
        const Histogram& histogram;
        std::string_view sglang_label{};
    };
    const std::array<Named, 10> all{{
        {"sglang:time_to_first_token_seconds",
         "vllm:time_to_first_token_seconds",
         "Seconds from receipt to first token, of this process's streamed requests.",
         requests.first_token},
        {"sglang:inter_token_latency_seconds",
         "vllm:inter_token_latency_seconds",
         "Seconds between two tokens, of this process's streamed requests.",
         requests.between_tokens},
        {"sglang:e2e_request_latency_seconds",
         "vllm:e2e_request_latency_seconds",
         "Seconds from receipt to the end of the answer, of this process's requests.",
         requests.whole_request},
        {"sglang:queue_time_seconds",
         "vllm:request_queue_time_seconds",
         "Seconds from receipt to first admission, of this process's requests.",
         requests.queue},
        {"sglang:per_stage_req_latency_seconds",
         "vllm:request_prefill_time_seconds",
         "Seconds from admission to first token, of this process's requests.",
         requests.prefill,
         ",stage=\"prefill_forward\""},
        {"",  // SGLang has no such metric
         "vllm:request_inference_time_seconds",
         "Seconds from admission to last token, of this process's requests.",
         requests.inference},
        {"sglang:request_decode_time_seconds",
         "vllm:request_decode_time_seconds",
         "Seconds from first to last token, of this process's streamed requests.",
         requests.decode},
        {"sglang:time_per_output_token_seconds",
         "vllm:request_time_per_output_token_seconds",
         "Mean seconds per token after the first, for each streamed request of this process.",
         requests.per_output_token},
        {"sglang:prompt_tokens_histogram",
         "vllm:request_prompt_tokens",
         "Prompt tokens per request of this process.",
         requests.prompt_tokens},
        {"sglang:generation_tokens_histogram",
         "vllm:request_generation_tokens",
         "Output tokens per request of this process.",
         requests.output_tokens},
    }};
    const std::string for_sglang = fmt::format("model_name=\"{}\",engine_type=\"unified\"", model);
    const std::string for_vllm = fmt::format("model_name=\"{}\",engine=\"0\"", model);
    for (const Named& one : all) {
        if (!one.sglang.empty()) {
            out.metric(one.sglang, "histogram", one.help);
            out.histogram(for_sglang + std::string(one.sglang_label), one.histogram);
        }
        out.metric(one.vllm, "histogram", one.help);
        out.histogram(for_vllm, one.histogram);
    }
}

}  // namespace

KvUse kv_use_of(const messages::ReplicaStatus& replica) {
    KvUse use;
    const std::int64_t pages_used = replica.pages_total - replica.pages_free - replica.pages_cached;
    use.used_tokens = std::max<std::int64_t>(pages_used, 0) * replica.page_size;
    use.total_tokens = replica.pages_total * replica.page_size;
    if (use.total_tokens > 0) use.usage = number(use.used_tokens) / number(use.total_tokens);
    if (replica.prompt_tokens_total > 0) {
        use.hit_rate = number(replica.cached_tokens_total) / number(replica.prompt_tokens_total);
    }
    return use;
}

std::string metrics_text(
    const messages::StatusReply& status,
    const messages::HelloReply& hello,
    const RequestMetrics& requests,
    int num_generating
) {
    const std::string model = escaped(hello.model);
    Writer out;
    write_table(out, metrics::sglang_table(), sglang_labels, model, status);
    write_sglang_rest(out, model, status);
    write_table(out, metrics::vllm_table(), vllm_labels, model, status);
    write_vllm_rest(out, model, status);
    write_requests(out, model, requests);
    write_table(out, metrics::own_table(), own_labels, model, status);
    write_replicas(out, status);
    metrics::write_checkpoints(out, status);
    metrics::write_adapters(out, status);
    metrics::write_drafts(out, model, status);
    metrics::write_experts(out, status);
    write_tree(out, status, num_generating);
    write_update(out, status);
    return out.take();
}

}  // namespace pitstop::http
