// Lists the metrics of /metrics that are one number of each replica, by whose names they have.
#pragma once

#include "messages/status.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace pitstop::http::metrics {

// Exposes a number per replica.
struct PerReplica {
    std::string_view name;
    std::string_view type;
    std::string_view help;
    double (*value)(const messages::ReplicaStatus& replica);
};

[[nodiscard]] std::span<const PerReplica> sglang_table();
[[nodiscard]] std::span<const PerReplica> vllm_table();
[[nodiscard]] std::span<const PerReplica> own_table();

// Returns how many requests ended so.
[[nodiscard]] std::int64_t finished(
    const messages::ReplicaStatus& replica, messages::FinishReason reason
);

}  // namespace pitstop::http::metrics
