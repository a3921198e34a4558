// The metrics of /metrics that have one number per replica, grouped by the engine that names them.
#pragma once

#include "messages/status.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace pitstop::http::metrics {

// A metric with one number per replica.
struct PerReplica {
    std::string_view name;
    std::string_view type;
    std::string_view help;
    double (*value)(const messages::ReplicaStatus& replica);
};

[[nodiscard]] std::span<const PerReplica> sglang_table();
[[nodiscard]] std::span<const PerReplica> vllm_table();
[[nodiscard]] std::span<const PerReplica> own_table();

// Returns the number of requests that ended for this reason.
[[nodiscard]] std::int64_t finished(
    const messages::ReplicaStatus& replica, messages::FinishReason reason
);

}  // namespace pitstop::http::metrics
