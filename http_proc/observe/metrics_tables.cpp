#include "http_proc/observe/metrics_tables.h"

#include "http_proc/observe/metrics_text.h"

#include <algorithm>
#include <array>

namespace pitstop::http::metrics {

std::int64_t finished(const messages::ReplicaStatus& replica, messages::FinishReason reason) {
    const auto found = std::ranges::find(replica.finished, reason, &messages::FinishCount::reason);
    return found == replica.finished.end() ? 0 : found->requests;
}

namespace {

double number(std::int64_t value) { return static_cast<double>(value); }
bool is_paused(const messages::ReplicaStatus& replica) { return !replica.pause_mode.empty(); }
double kv_available(const messages::ReplicaStatus& r) { return number(r.pages_free * r.page_size); }
double kv_evictable(const messages::ReplicaStatus& r) {
    return number(r.pages_cached * r.page_size);
}

using R = const messages::ReplicaStatus&;

constexpr std::array kSglang{
    PerReplica{
        "sglang:num_running_reqs",
        "gauge",
        "Running requests.",
        [](R r) { return number(r.num_running); }},
    PerReplica{
        "sglang:num_queue_reqs",
        "gauge",
        "Requests in the queue.",
        [](R r) { return number(r.num_waiting); }},
    PerReplica{
        "sglang:num_used_tokens",
        "gauge",
        "Tokens in the KV pool that requests use.",
        [](R r) { return number(kv_use_of(r).used_tokens); }},
    PerReplica{
        "sglang:kv_used_tokens",
        "gauge",
        "Tokens in the KV pool that requests use.",
        [](R r) { return number(kv_use_of(r).used_tokens); }},
    PerReplica{
        "sglang:kv_available_tokens",
        "gauge",
        "Tokens for which the KV pool has free pages.",
        kv_available},
    PerReplica{
        "sglang:kv_evictable_tokens",
        "gauge",
        "Tokens in the KV pool that only the prefix cache uses.",
        kv_evictable},
    PerReplica{
        "sglang:max_total_num_tokens",
        "gauge",
        "Size of the KV pool in tokens.",
        [](R r) { return number(kv_use_of(r).total_tokens); }},
    PerReplica{
        "sglang:token_usage",
        "gauge",
        "Fraction of the KV pool that requests use, 0 to 1.",
        [](R r) { return kv_use_of(r).usage; }},
    PerReplica{
        "sglang:utilization",
        "gauge",
        "Running requests as a fraction of the limit, 0 to 1.",
        [](R r) { return r.running_max > 0 ? number(r.num_running) / number(r.running_max) : 0; }},
    PerReplica{
        "sglang:gen_throughput",
        "gauge",
        "Output tokens per second, over about the last second; 0 while paused.",
        [](R r) { return r.output_tokens_per_s; }},
    PerReplica{
        "sglang:cache_hit_rate",
        "gauge",
        "Fraction of prompt tokens found in the prefix cache, 0 to 1.",
        [](R r) { return kv_use_of(r).hit_rate; }},
    PerReplica{
        "sglang:num_retracted_reqs",
        "gauge",
        "Requests in the queue that ran before and were retracted.",
        [](R r) { return number(r.num_retracted); }},
    PerReplica{
        "sglang:num_paused_reqs",
        "gauge",
        "Requests that a pause holds back.",
        [](R r) { return is_paused(r) ? number(r.num_running + r.num_waiting) : 0; }},
    PerReplica{
        "sglang:prompt_tokens_total",
        "counter",
        "Prompt tokens of all admitted requests.",
        [](R r) { return number(r.prompt_tokens_total); }},
    PerReplica{
        "sglang:generation_tokens_total",
        "counter",
        "Output tokens of all requests.",
        [](R r) { return number(r.output_tokens_total); }},
    PerReplica{
        "sglang:num_requests_total",
        "counter",
        "Requests received.",
        [](R r) { return number(r.requests_total); }},
    PerReplica{
        "sglang:num_aborted_requests_total",
        "counter",
        "Requests that were aborted.",
        [](R r) { return number(finished(r, messages::FinishReason::kAbort)); }},
    PerReplica{
        "sglang:num_retracted_requests_total",
        "counter",
        "Times that a running request was retracted to the queue.",
        [](R r) { return number(r.retractions_total); }},
};

constexpr std::array kVllm{
    PerReplica{
        "vllm:num_requests_running",
        "gauge",
        "Running requests.",
        [](R r) { return number(r.num_running); }},
    PerReplica{
        "vllm:num_requests_waiting",
        "gauge",
        "Requests in the queue.",
        [](R r) { return number(r.num_waiting); }},
    PerReplica{
        "vllm:kv_cache_usage_perc",
        "gauge",
        "Fraction of the KV pool that requests use, 0 to 1.",
        [](R r) { return kv_use_of(r).usage; }},
    PerReplica{
        "vllm:gpu_cache_usage_perc",
        "gauge",
        "The older name of vllm:kv_cache_usage_perc.",
        [](R r) { return kv_use_of(r).usage; }},
    PerReplica{
        "vllm:gpu_prefix_cache_hit_rate",
        "gauge",
        "Fraction of prompt tokens found in the prefix cache, 0 to 1.",
        [](R r) { return kv_use_of(r).hit_rate; }},
    PerReplica{
        "vllm:prompt_tokens_total",
        "counter",
        "Prompt tokens of all admitted requests.",
        [](R r) { return number(r.prompt_tokens_total); }},
    PerReplica{
        "vllm:generation_tokens_total",
        "counter",
        "Output tokens of all requests.",
        [](R r) { return number(r.output_tokens_total); }},
    PerReplica{
        "vllm:prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked up in the prefix cache.",
        [](R r) { return number(r.prompt_tokens_total); }},
    PerReplica{
        "vllm:prefix_cache_hits_total",
        "counter",
        "Prompt tokens found in the prefix cache.",
        [](R r) { return number(r.cached_tokens_total); }},
    PerReplica{
        "vllm:gpu_prefix_cache_queries_total",
        "counter",
        "The older name of vllm:prefix_cache_queries_total.",
        [](R r) { return number(r.prompt_tokens_total); }},
    PerReplica{
        "vllm:gpu_prefix_cache_hits_total",
        "counter",
        "The older name of vllm:prefix_cache_hits_total.",
        [](R r) { return number(r.cached_tokens_total); }},
    PerReplica{
        "vllm:num_preemptions_total",
        "counter",
        "Times that a running request was retracted to the queue.",
        [](R r) { return number(r.retractions_total); }},
};

constexpr std::array kOwn{
    PerReplica{
        "pitstop_weight_epoch",
        "gauge",
        "Epoch of the weight version that serves.",
        [](R r) { return number(static_cast<std::int64_t>(raw(r.epoch))); }},
    PerReplica{
        "pitstop_has_weights",
        "gauge",
        "1 if the replica has weights; 0 if it needs an update before it can generate.",
        [](R r) { return r.has_weights ? 1.0 : 0.0; }},
    PerReplica{
        "pitstop_paused",
        "gauge",
        "1 while generation is paused; 0 otherwise.",
        [](R r) { return is_paused(r) ? 1.0 : 0.0; }},
    PerReplica{
        "pitstop_pause_age_seconds",
        "gauge",
        "Seconds since the current pause began; 0 without a pause.",
        [](R r) { return r.paused_s; }},
    PerReplica{
        "pitstop_paused_seconds_total",
        "counter",
        "Seconds of all pauses, including the current one.",
        [](R r) { return r.paused_s_total; }},
    PerReplica{
        "pitstop_pauses_total",
        "counter",
        "Pauses of generation that began.",
        [](R r) { return number(r.pauses_total); }},
    PerReplica{
        "pitstop_steps_total",
        "counter",
        "Forward passes that finished.",
        [](R r) { return number(r.num_steps); }},
    PerReplica{
        "pitstop_step_age_seconds",
        "gauge",
        "Seconds since the oldest unanswered step was sent to the workers; 0: none.",
        [](R r) { return r.step_age_s; }},
    PerReplica{
        "pitstop_kv_held_tokens",
        "gauge",
        "Tokens in the KV pool that sessions hold between their turns.",
        [](R r) { return number(r.pages_held * r.page_size); }},
    PerReplica{
        "pitstop_recomputed_tokens_total",
        "counter",
        "Tokens of retracted requests that were prefilled again.",
        [](R r) { return number(r.recomputed_tokens_total); }},
    PerReplica{
        "pitstop_spanning_requests_total",
        "counter",
        "Requests whose output was sampled under more than one version or label.",
        [](R r) { return number(r.spanning_requests_total); }},
};

}  // namespace

std::span<const PerReplica> sglang_table() { return kSglang; }
std::span<const PerReplica> vllm_table() { return kVllm; }
std::span<const PerReplica> own_table() { return kOwn; }

}  // namespace pitstop::http::metrics
