#include "tests/tp_worker/update/updater_fixture.h"

#include "base/isa.h"
#include "tests/gpu_or_skip.h"

namespace pitstop::tp_worker {

std::optional<messages::Frames> ask(
    Updater& updater, const messages::Frames& order, std::string_view answer_type
) {
    Result<std::vector<messages::Frames>> now = updater.handle_order(order);
    EXPECT_TRUE(now) << now.error().message;
    if (!now) return std::nullopt;
    std::vector<messages::Frames> frames = *std::move(now);
    while (true) {
        for (messages::Frames& one : frames) {
            if (one.type == answer_type) return std::move(one);
        }
        pollfd item{updater.fd(), POLLIN, 0};
        if (::poll(&item, 1, 20'000) != 1) break;
        frames = updater.take_answers();
    }
    ADD_FAILURE() << "no answer of type " << answer_type;
    return std::nullopt;
}

EngineOptions OneRankUpdaterTest::options_on(DeviceKind device) {
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

bool OneRankUpdaterTest::has_device(DeviceKind device) {
    const std::string why = device == DeviceKind::kCuda ? why_no_gpu() : "";
    EXPECT_TRUE(why.empty() || !is_gpu_required()) << why;
    return why.empty();
}

void OneRankUpdaterTest::open(const EngineOptions& options) {
    updater_.reset();
    auto replica = TestReplica::make({.engine = options});
    ASSERT_TRUE(replica) << replica.error().message;
    replica_ = *std::move(replica);
    updater_ = std::make_unique<Updater>(replica_->root(), pace_, fault_point_);
    last_update_ = 0;
    epoch_ = 1;
}

OneRankUpdaterTest::~OneRankUpdaterTest() { updater_.reset(); }

messages::WorkerStaged OneRankUpdaterTest::stage(messages::UpdateSpec spec) {
    messages::WorkerStage order;
    order.update = messages::UpdateId{++last_update_};
    order.spec = std::move(spec);
    return ask<messages::WorkerStaged>(order);
}

void OneRankUpdaterTest::commit(bool rollback) {
    ask<messages::WorkerCommitted>(commit_order(rollback));
}

void OneRankUpdaterTest::drop() { ask<messages::WorkerDropped>(drop_order()); }

std::vector<messages::PartDigest> OneRankUpdaterTest::live_digests() {
    return ask<messages::WorkerDigests>(messages::WorkerDigest{.call = CallId{1}}).digests;
}

void UpdaterTest::open(int tp) {
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
        updaters_.push_back(std::make_unique<Updater>(replica_->engine(rank), pace_, fault_point_));
    }
}

UpdaterTest::~UpdaterTest() { updaters_.clear(); }

std::string UpdaterTest::digest_of(const messages::WorkerDigests& answer) {
    const auto version = messages::version_digest({{{answer.rank, answer.digests}}});
    EXPECT_TRUE(version);
    return version ? to_hex(version->digest) : "";
}

messages::WorkerStage UpdaterTest::stage_order(const std::string& path, messages::UpdateMode mode) {
    messages::WorkerStage order;
    order.update = messages::UpdateId{++last_update_};
    order.spec.source.path = path;
    order.spec.mode = mode;
    return order;
}

std::vector<messages::WorkerStaged> UpdaterTest::stage(
    const std::string& path, messages::UpdateMode mode
) {
    messages::WorkerStage order;
    order.update = messages::UpdateId{++last_update_};
    order.spec = spec_;
    order.spec.source.path = path;
    order.spec.mode = mode;
    return ask<messages::WorkerStaged>(order);
}

void UpdaterTest::commit(bool rollback) { ask<messages::WorkerCommitted>(commit_order(rollback)); }

void UpdaterTest::drop() { ask<messages::WorkerDropped>(drop_order()); }

std::string UpdaterTest::digest_of_votes(const std::vector<messages::WorkerStaged>& votes) {
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

std::string UpdaterTest::live_digest() {
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

void UpdaterTest::expect_generates_as(const std::string& model) {
    const Json entry = load_json("tests/data/models/reference.json")["models"][model]["greedy"][0];
    const std::vector<TokenId> expected = ids_of(entry["continuation"]);
    EXPECT_EQ(
        generate(replica_.get(), ids_of(entry["ids"]), static_cast<std::int64_t>(expected.size())),
        expected
    ) << model;
}

void UpdaterTest::expect_refused(
    const std::vector<messages::WorkerStaged>& votes, const std::string& why
) {
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

}  // namespace pitstop::tp_worker
