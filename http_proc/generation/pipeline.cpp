#include "http_proc/generation/pipeline.h"

namespace pitstop::http {

Task<std::optional<messages::Span>> serving_version(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await exchange.tree().call(messages::Status{});
    if (!status) co_return std::nullopt;
    const messages::ReplicaStatus& replica = status->replicas.front();
    messages::Span version;
    version.epoch = version.kv_min_epoch = version.kv_max_epoch = replica.epoch;
    version.label = replica.label;
    version.digest = replica.digest;
    co_return version;
}

}  // namespace pitstop::http
