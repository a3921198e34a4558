// A replica whose updates are ordered as a scheduler would, and what must come of them.
#pragma once

#include "messages/codec.h"
#include "messages/version_digest.h"
#include "tests/gpu_or_skip.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/update/updater.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

using Json = nlohmann::json;

inline Json load_json(const std::string& path) {
    return Json::parse(std::ifstream(source_dir() + "/" + path));
}

inline std::vector<TokenId> ids_of(const Json& json) {
    std::vector<TokenId> ids;
    for (const int id : json) ids.push_back(static_cast<TokenId>(id));
    return ids;
}

// Orders, and waits for the next answer of this type: what else comes meanwhile (the vote of a
// stage that was dropped since) is passed over. None: the order was refused, or nothing came in
// time.
template <class Answer, class Order>
std::optional<Answer> ask(Updater& updater, const Order& order) {
    Result<std::vector<messages::Frames>> now = updater.handle_order(encode(order));
    EXPECT_TRUE(now) << now.error().message;
    if (!now) return std::nullopt;
    std::vector<messages::Frames> frames = *std::move(now);
    while (true) {
        for (const messages::Frames& one : frames) {
            if (one.type != Answer::kType) continue;
            auto answer = decode<Answer>(one, messages::UnknownFields::kRefuse);
            EXPECT_TRUE(answer);
            return answer ? std::optional(*std::move(answer)) : std::nullopt;
        }
        pollfd item{updater.fd(), POLLIN, 0};
        if (::poll(&item, 1, 20'000) != 1) break;
        frames = updater.take_answers();
    }
    ADD_FAILURE() << "no answer of type " << Answer::kType;
    return std::nullopt;
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

// A replica of one rank, whose updates are ordered of that rank.
class OneRankUpdaterTest : public testing::Test, protected UpdateNumbers {
  protected:
    // With room for what these tests compute: prompts of a few tokens.
    static EngineOptions options_on(DeviceKind device) {
        EngineOptions options;
        options.model_dir = model_dir("stories");
        options.device = device;
        options.compute = Compute::kFp32;
        options.isa = best_isa();
        options.max_total_tokens = 1024;
        options.tokens_per_step_max = 256;
        options.num_slots = 4;
        return options;
    }
    // Whether a test on such a device can run; fails where a GPU is required and not there.
    static bool has_device(DeviceKind device) {
        const std::string why = device == DeviceKind::kCuda ? why_no_gpu() : "";
        EXPECT_TRUE(why.empty() || !is_gpu_required()) << why;
        return why.empty();
    }
    void open(const EngineOptions& options) {
        updater_.reset();
        auto replica = TestReplica::make({.engine = options});
        ASSERT_TRUE(replica) << replica.error().message;
        replica_ = *std::move(replica);
        updater_ = std::make_unique<Updater>(replica_->root(), pace_, fault_point_);
        last_update_ = 0;
        epoch_ = 1;
    }
    ~OneRankUpdaterTest() override { updater_.reset(); }

    template <class Answer, class Order>
    Answer ask(const Order& order) {
        return tp_worker::ask<Answer>(*updater_, order).value_or(Answer{});
    }
    messages::WorkerStaged stage(messages::UpdateSpec spec) {
        messages::WorkerStage order;
        order.update = messages::UpdateId{++last_update_};
        order.spec = std::move(spec);
        return ask<messages::WorkerStaged>(order);
    }
    void commit(bool rollback = false) { ask<messages::WorkerCommitted>(commit_order(rollback)); }
    void drop() { ask<messages::WorkerDropped>(drop_order()); }
    // Of the live weights, computed from memory.
    std::vector<messages::PartDigest> live_digests() {
        return ask<messages::WorkerDigests>(messages::WorkerDigest{.call = CallId{1}}).digests;
    }

    Pace pace_{1.0};
    FaultPoint fault_point_{"none"};
    std::unique_ptr<TestReplica> replica_{};
    std::unique_ptr<Updater> updater_{};
};

// A replica of `stories` with an updater on each rank.
class UpdaterTest : public testing::Test, protected UpdateNumbers {
  protected:
    void open(int tp) {
        ReplicaOptions options;
        options.engine.model_dir = model_dir("stories");
        options.engine.compute = Compute::kFp32;
        options.engine.isa = best_isa();
        options.engine.max_total_tokens = 1024;
        options.tp = tp;
        auto replica = TestReplica::make(options);
        ASSERT_TRUE(replica) << replica.error().message;
        replica_ = *std::move(replica);
        for (int rank = 0; rank < tp; ++rank) {
            updaters_.push_back(
                std::make_unique<Updater>(replica_->engine(rank), pace_, fault_point_)
            );
        }
    }
    ~UpdaterTest() override { updaters_.clear(); }

    // Ordered on rank 0; its answers come later.
    template <class Order>
    void order(const Order& order) {
        const Result<std::vector<messages::Frames>> now = updaters_[0]->handle_order(encode(order));
        ASSERT_TRUE(now) << now.error().message;
        ASSERT_TRUE(now->empty()) << "answered at once, by " << now->front().type;
    }
    // Rank 0's next answers of this type, of whatever else comes meanwhile.
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
    static std::string digest_of(const messages::WorkerDigests& answer) {
        const auto version = messages::version_digest({{{answer.rank, answer.digests}}});
        EXPECT_TRUE(version);
        return version ? to_hex(version->digest) : "";
    }
    messages::WorkerStage stage_order(
        const std::string& path, messages::UpdateMode mode = messages::UpdateMode::kStaged
    ) {
        messages::WorkerStage order;
        order.update = messages::UpdateId{++last_update_};
        order.spec.source.path = path;
        order.spec.mode = mode;
        return order;
    }

    // Orders on every rank, and one answer of each.
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
    ) {
        messages::WorkerStage order;
        order.update = messages::UpdateId{++last_update_};
        order.spec = spec_;
        order.spec.source.path = path;
        order.spec.mode = mode;
        return ask<messages::WorkerStaged>(order);
    }
    void commit(bool rollback = false) { ask<messages::WorkerCommitted>(commit_order(rollback)); }
    void drop() { ask<messages::WorkerDropped>(drop_order()); }

    std::string digest_of_votes(const std::vector<messages::WorkerStaged>& votes) {
        std::vector<messages::RankParts> parts;
        for (const messages::WorkerStaged& vote : votes) {
            EXPECT_TRUE(vote.outcome.ok)
                << (vote.outcome.problems.empty() ? "" : vote.outcome.problems[0]);
            parts.push_back({vote.outcome.rank, vote.digests});
        }
        const auto version = messages::version_digest(parts);
        EXPECT_TRUE(version) << version.error().message;
        return version ? to_hex(version->digest) : "";
    }
    // Of the live weights, computed from memory.
    std::string live_digest() {
        const std::vector<messages::WorkerDigests> answers =
            ask<messages::WorkerDigests>(messages::WorkerDigest{.call = CallId{1}});
        std::vector<messages::RankParts> parts;
        for (const messages::WorkerDigests& answer : answers) {
            EXPECT_EQ(answer.epoch, Epoch{epoch_});
            parts.push_back({answer.rank, answer.digests});
        }
        const auto version = messages::version_digest(parts);
        EXPECT_TRUE(version);
        return version ? to_hex(version->digest) : "";
    }

    // Whether the replica generates what the reference says `model` does.
    void expect_generates_as(const std::string& model) {
        const Json entry =
            load_json("tests/data/models/reference.json")["models"][model]["greedy"][0];
        const std::vector<TokenId> expected = ids_of(entry["continuation"]);
        EXPECT_EQ(
            generate(
                replica_.get(), ids_of(entry["ids"]), static_cast<std::int64_t>(expected.size())
            ),
            expected
        ) << model;
    }

    // A vote of no from every rank, for this reason; the old version is there bit for bit.
    void expect_refused(const std::vector<messages::WorkerStaged>& votes, const std::string& why) {
        for (const messages::WorkerStaged& vote : votes) {
            EXPECT_FALSE(vote.outcome.ok);
            std::string all;
            for (const std::string& problem : vote.outcome.problems) all += problem + "\n";
            EXPECT_NE(all.find(why), std::string::npos) << all;
            EXPECT_TRUE(vote.digests.empty());
        }
        drop();
        EXPECT_EQ(live_digest(), expected_["stories"]["digest"]);
    }

    Pace pace_{1.0};
    FaultPoint fault_point_{"none"};
    std::unique_ptr<TestReplica> replica_{};
    std::vector<std::unique_ptr<Updater>> updaters_{};
    messages::UpdateSpec spec_{};
    Json expected_ = load_json("tests/data/golden/digests.json")["models"];
};

}  // namespace pitstop::tp_worker
