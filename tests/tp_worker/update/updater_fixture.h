// A replica that gets updates as from a scheduler, and the expected results.
#pragma once

#include "messages/codec.h"
#include "messages/version_digest.h"
#include "tests/tp_worker/test_json.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/update/updater.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// Gives the order, and waits for the next answer of this type. Skips other messages, such as the
// vote of a dropped stage. Nothing: the order was refused, or no answer came in time.
std::optional<messages::Frames> ask(
    Updater& updater, const messages::Frames& order, std::string_view answer_type
);
template <class Answer, class Order>
std::optional<Answer> ask(Updater& updater, const Order& order) {
    const std::optional<messages::Frames> found = ask(updater, encode(order), Answer::kType);
    if (!found) return std::nullopt;
    auto answer = decode<Answer>(*found, messages::UnknownFields::kRefuse);
    EXPECT_TRUE(answer);
    return answer ? std::optional(*std::move(answer)) : std::nullopt;
}

// Numbers updates and versions as a scheduler does: a rollback is an update of its own.
struct UpdateNumbers {
    messages::WorkerCommit commit_order(bool rollback) {
        if (rollback) ++last_update_;
        return {
            .update = messages::UpdateId{last_update_},
            .epoch = Epoch{++epoch_},
            .rollback = rollback};
    }
    [[nodiscard]] messages::WorkerDrop drop_order() const {
        return {.update = messages::UpdateId{last_update_}};
    }

    std::uint64_t last_update_ = 0;
    std::int64_t epoch_ = 1;
};

// A replica of one rank, which gets the orders of updates.
class OneRankUpdaterTest : public testing::Test, protected UpdateNumbers {
  protected:
    // Options with room for these tests' computations: prompts of a few tokens.
    static EngineOptions options_on(DeviceKind device);
    // Returns whether a test on such a device can run; fails if a GPU is required and missing.
    static bool has_device(DeviceKind device);
    void open(const EngineOptions& options);
    ~OneRankUpdaterTest() override;

    template <class Answer, class Order>
    Answer ask(const Order& order) {
        return tp_worker::ask<Answer>(*updater_, order).value_or(Answer{});
    }
    messages::WorkerStaged stage(messages::UpdateSpec spec);
    void commit(bool rollback = false);
    void drop();
    // Returns the digests of the live weights, computed from memory.
    std::vector<messages::PartDigest> live_digests();

    Pace pace_{1.0};
    FaultPoint fault_point_{"none"};
    std::unique_ptr<TestReplica> replica_{};
    std::unique_ptr<Updater> updater_{};
};

// A replica of `stories` with an updater on each rank.
class UpdaterTest : public testing::Test, protected UpdateNumbers {
  protected:
    void open(int tp);
    ~UpdaterTest() override;

    // Gives the order to rank 0, whose answers arrive later.
    template <class Order>
    void order(const Order& order) {
        const Result<std::vector<messages::Frames>> now = updaters_[0]->handle_order(encode(order));
        ASSERT_TRUE(now) << now.error().message;
        ASSERT_TRUE(now->empty()) << "answered at once, by " << now->front().type;
    }
    // Waits for rank 0's next `num` answers of this type, and skips others.
    template <class Answer>
    std::vector<Answer> wait_for(std::size_t num) {
        std::vector<Answer> answers;
        while (answers.size() < num) {
            pollfd item{updaters_[0]->fd(), POLLIN, 0};
            if (::poll(&item, 1, 20'000) != 1) break;
            for (const messages::Frames& one : updaters_[0]->take_answers()) {
                if (one.type == Answer::kType)
                    answers.push_back(*decode<Answer>(one, messages::UnknownFields::kRefuse));
            }
        }
        EXPECT_EQ(answers.size(), num);
        return answers;
    }
    static std::string digest_of(const messages::WorkerDigests& answer);
    messages::WorkerStage stage_order(
        const std::string& path, messages::UpdateMode mode = messages::UpdateMode::kStaged
    );

    // Gives the order to every rank; returns one answer from each.
    template <class Answer, class Order>
    std::vector<Answer> ask(const Order& order) {
        std::vector<Answer> answers;
        for (const auto& updater : updaters_) {
            if (auto answer = tp_worker::ask<Answer>(*updater, order))
                answers.push_back(*std::move(answer));
        }
        EXPECT_GE(answers.size(), updaters_.size());
        return answers;
    }

    std::vector<messages::WorkerStaged> stage(
        const std::string& path, messages::UpdateMode mode = messages::UpdateMode::kStaged
    );
    void commit(bool rollback = false);
    void drop();

    std::string digest_of_votes(const std::vector<messages::WorkerStaged>& votes);
    // Returns the digest of the live weights, computed from memory.
    std::string live_digest();

    // Expects the replica to generate the reference's tokens for `model`.
    void expect_generates_as(const std::string& model);

    // Expects every rank to vote no for this reason, and all bits of the old version unchanged.
    void expect_refused(const std::vector<messages::WorkerStaged>& votes, const std::string& why);

    Pace pace_{1.0};
    FaultPoint fault_point_{"none"};
    std::unique_ptr<TestReplica> replica_{};
    std::vector<std::unique_ptr<Updater>> updaters_{};
    messages::UpdateSpec spec_{};
    Json expected_ = load_json("tests/data/golden/digests.json")["models"];
};

}  // namespace pitstop::tp_worker
