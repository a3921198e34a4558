#include "http_proc/generation/pipeline.h"

namespace pitstop {

Task<std::optional<Span>> serving_version(Exchange& exchange) {
    const Result<StatusReply> status = co_await exchange.tree().call(Status{});
    if (!status) co_return std::nullopt;
    const ReplicaStatus& replica = status->replicas.front();
    Span version;
    version.epoch = version.kv_min_epoch = version.kv_max_epoch = replica.epoch;
    version.label = replica.label;
    version.digest = replica.digest;
    co_return version;
}

}  // namespace pitstop
