// The facts of a replica that orders about an update depend on. Each test sets them.
#pragma once

#include "scheduler_proc/update_checks.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace pitstop::scheduler {

class UpdateFactsTest : public testing::Test {
  protected:
    static constexpr messages::UpdateId kUpdate{7};
    static constexpr messages::UpdateId kOther{6};

    UpdateFactsTest() { weights.open("digest-1", /*has_weights=*/true); }

    [[nodiscard]] UpdateFacts facts() const { return {config, weights, job}; }
    // Starts an update, and ends each of these orders on both ranks.
    void start(UpdateJob::Kind kind, std::initializer_list<messages::UpdateOrder> orders) {
        job.emplace(kUpdate, kind, config.tp);
        for (const messages::UpdateOrder order : orders) {
            job->round.ask(order);
            for (const std::size_t rank : job->round.silent())
                job->round.record_answer(rank, messages::UpdateRound::Answer::kDone);
        }
    }

    SchedulerConfig config{.replica = ReplicaId{3}, .tp = 2, .epoch = Epoch{5}};
    ReplicaWeights weights{Epoch{5}, "base"};
    std::optional<UpdateJob> job{};
};

}  // namespace pitstop::scheduler
