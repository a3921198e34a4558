#include "tests/scheduler_proc/fake_workers.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::scheduler {

std::uint64_t FakeWorkers::staged_weights_of(const messages::WorkerStage& stage) const {
    if (stage.spec.adapter.empty()) return shadow_weights_;
    const auto id = static_cast<messages::AdapterId>(static_cast<std::uint64_t>(stage.update));
    return model_.adapted(origin_of(id)).weights;
}

// A partial update and a rollback begin with a version that the workers have.
void FakeWorkers::check_beginning(const messages::WorkerStage& stage) {
    if (stage.spec.partial != stage.begins_as.has_value())
        problems_.emplace_back("a load begins with a version, or a rollback with none");
    if (!stage.begins_as) return;
    if (!adapters_.contains(*stage.begins_as) && !evicted_.contains(*stage.begins_as)) {
        problems_.push_back(fmt::format(
            "a stage begins with adapter {}, which the workers do not have",
            static_cast<std::uint64_t>(*stage.begins_as)
        ));
    }
    const auto id = static_cast<messages::AdapterId>(static_cast<std::uint64_t>(stage.update));
    if (stage.rollback) origins_[id] = origin_of(*stage.begins_as);
}

std::vector<FromWorker> FakeWorkers::answers_to(const messages::WorkerAdapters& order) {
    std::vector<FromWorker> answers;
    for (const messages::AdapterId adapter : order.evict) {
        adapters_.erase(adapter);
        if (!evicted_.insert(adapter).second && !restore_failures.contains(adapter))
            problems_.push_back(
                fmt::format("adapter {} is evicted twice", static_cast<std::uint64_t>(adapter))
            );
        const auto failures = eviction_failures.find(adapter);
        if (failures == eviction_failures.end()) continue;
        for (std::size_t i = 0; i < failures->second.size(); ++i) {
            if (!failures->second[i]) continue;
            messages::WorkerNotEvicted answer{
                .rank = static_cast<Rank>(i), .order = order.order, .id = adapter};
            answer.verdict = *failures->second[i];
            answers.emplace_back(std::move(answer));
        }
    }
    for (const messages::AdapterId adapter : order.restore) {
        if (!evicted_.contains(adapter))
            problems_.push_back(
                fmt::format("adapter {} is not evicted", static_cast<std::uint64_t>(adapter))
            );
        const auto failures = restore_failures.find(adapter);
        const bool fails = failures != restore_failures.end();
        if (!fails && evicted_.erase(adapter) > 0) adapters_.insert(adapter);
        for (std::size_t i = 0; i < is_silent.size(); ++i) {
            if (is_silent[i]) continue;
            messages::WorkerRestored answer{
                .rank = static_cast<Rank>(i), .order = order.order, .id = adapter};
            if (fails && failures->second.at(i)) answer.verdict = *failures->second.at(i);
            answers.emplace_back(std::move(answer));
        }
    }
    return answers;
}

}  // namespace pitstop::scheduler
