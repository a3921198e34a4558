// Two replicas for the coordinator that answer as a test tells them to.
#pragma once

#include "tokenizer_proc/update_coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace pitstop::tokenizer {

// Two replicas whose answers a test chooses.
class UpdateCoordinatorTest : public testing::Test {
  protected:
    UpdateCoordinatorTest() {
        coordinator_.set_version(
            {.epoch = Epoch{1}, .label = "base", .digest = "d1", .path = "/base"}
        );
    }

    static messages::UpdateWeights call(messages::UpdateMode mode = messages::UpdateMode::kStaged) {
        messages::UpdateWeights update;
        update.call = CallId{7};
        update.timeout_ms = 60'000;
        update.update.source.path = "/checkpoint";
        update.update.mode = mode;
        update.update.label = "new";
        return update;
    }

    void start(const messages::UpdateWeights& update) {
        coordinator_.handle(now_, {"trainer", update.call}, update, out_);
    }

    // The last order, which must be a T.
    template <class T>
    T last_order() {
        EXPECT_FALSE(out_.orders.empty());
        if (out_.orders.empty()) return T{};
        const T* order = std::get_if<T>(&out_.orders.back());
        EXPECT_NE(order, nullptr);
        return order != nullptr ? *order : T{};
    }

    void answer(
        int replica,
        messages::UpdateOrder order,
        bool ok = true,
        std::optional<ErrorCode> code = std::nullopt,
        std::string digest = "d2",
        messages::UpdateState state = messages::UpdateState::kServing
    ) {
        messages::UpdatePart part;
        part.update = messages::UpdateId{next_update_};
        part.replica = ReplicaId{replica};
        part.order = order;
        part.ok = ok;
        part.verdict.code = code;
        part.verdict.message = ok ? "" : "rank 1: disk on fire";
        part.state = state;
        part.label = "new";
        part.digest = std::move(digest);
        coordinator_.handle_part(now_, part, out_);
    }
    void both_answer(messages::UpdateOrder order) { answer(0, order), answer(1, order); }

    template <class T>
    std::size_t count_orders() const {
        return static_cast<std::size_t>(std::count_if(
            out_.orders.begin(),
            out_.orders.end(),
            [](const auto& order) { return std::holds_alternative<T>(order); }
        ));
    }

    UpdateCoordinator coordinator_{2};
    UpdateCoordinator::Out out_{};
    TimePoint now_{};
    std::uint64_t next_update_ = 1;
};

}  // namespace pitstop::tokenizer
