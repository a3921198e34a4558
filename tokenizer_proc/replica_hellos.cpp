#include "tokenizer_proc/replica_hellos.h"

#include "base/log.h"

namespace pitstop::tokenizer {

Result<> ReplicaHellos::add(const messages::SchedulerHello& hello) {
    const auto index = static_cast<std::size_t>(raw(hello.replica));
    if (index >= all_.size() || all_[index]) {
        return make_error(
            ErrorCode::kAlreadyExists,
            "a hello of replica {}: not one of the {} replicas, or its second hello",
            raw(hello.replica),
            all_.size()
        );
    }
    all_[index] = hello;
    return Ok{};
}

void ReplicaHellos::log_differences() const {
    for (const auto& other : all_) {
        if (other->digest == first().digest && other->vocab_size == first().vocab_size) continue;
        spdlog::error(
            "replicas 0 and {} hold different weights: {} and {}",
            raw(other->replica),
            first().digest,
            other->digest
        );
    }
}

std::string ReplicaHellos::missing() const {
    std::string names;
    for (std::size_t i = 0; i < all_.size(); ++i) {
        if (all_[i]) continue;
        names += fmt::format("{}scheduler_proc[{}]", names.empty() ? "" : ", ", i);
    }
    return names;
}

}  // namespace pitstop::tokenizer
