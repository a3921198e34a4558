// Writes a status as Prometheus text for /metrics, under SGLang's names, vLLM's and pitstop's own.
//
// Source: Prometheus exposition formats, "Text-based format", version 0.0.4; the names of both
// engines' metrics collectors.
#pragma once

#include "http_proc/server/request_metrics.h"
#include "messages/greeting.h"
#include "messages/status.h"

#include <string>
#include <string_view>

namespace pitstop::http {

// `num_generating`: the engine's open requests of this front end.
[[nodiscard]] std::string metrics_text(
    const messages::StatusReply& status,
    const messages::HelloReply& hello,
    const RequestMetrics& requests,
    int num_generating
);

// One replica's use of KV: tokens in use, its fullness (0 to 1), and the fraction of prompt tokens
// that the prefix cache had.
struct KvUse {
    std::int64_t used_tokens = 0;
    std::int64_t total_tokens = 0;
    double usage = 0;
    double hit_rate = 0;
};
[[nodiscard]] KvUse kv_use_of(const messages::ReplicaStatus& replica);

}  // namespace pitstop::http
