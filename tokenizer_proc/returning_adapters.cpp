#include "tokenizer_proc/returning_adapters.h"

#include "base/check.h"
#include "base/log.h"

#include <chrono>
#include <utility>

namespace pitstop::tokenizer {
namespace {

constexpr std::chrono::milliseconds kTimeout = std::chrono::minutes(1);  // the most per adapter

}  // namespace

void ReturningAdapters::begin(TimePoint now, Args args) {
    deadline_ = now + args.limit;
    for (messages::LostAdapter& lost : args.adapters) {
        if (lost.path.empty()) {
            spdlog::warn(
                "adapter '{}' is lost: its tensors were sent, and no directory has them",
                lost.adapter.name
            );
            continue;
        }
        waiting_.push_back(std::move(lost));
    }
}

bool ReturningAdapters::has_next(TimePoint now) {
    if (now < deadline_) return !is_done();
    for (const messages::LostAdapter& lost : waiting_) {
        spdlog::warn(
            "adapter '{}' is lost: those before it took the time that a restart has to load "
            "adapters again (half of --start-timeout)",
            lost.adapter.name
        );
    }
    waiting_.clear();
    return false;
}

messages::UpdateWeights ReturningAdapters::next(TimePoint now) const {
    CHECK(!is_done());
    const messages::LostAdapter& lost = waiting_.front();
    messages::UpdateWeights load;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now);
    load.timeout_ms = std::min(kTimeout, left).count();
    load.update.source.path = lost.path;
    load.update.adapter = lost.adapter.name;
    load.update.label = lost.adapter.label;
    load.update.digest = lost.adapter.digest;
    load.update.adapter_config_digest = lost.config_digest;
    load.update.adapter_pinned = lost.pinned;
    load.update.allow_nonfinite = true;  // the same tensors were accepted before
    return load;
}

void ReturningAdapters::record(const messages::UpdateReply& reply) {
    CHECK(!is_done());
    const messages::LostAdapter lost = std::move(waiting_.front());
    waiting_.pop_front();
    if (reply.ok) {
        spdlog::info(
            "adapter '{}' is back from {}: version {}, digest {}",
            lost.adapter.name,
            lost.path,
            raw(reply.epoch),
            reply.digest
        );
    } else {
        spdlog::warn(
            "adapter '{}' is lost: {}: {}", lost.adapter.name, lost.path, reply.verdict.message
        );
    }
}

}  // namespace pitstop::tokenizer
