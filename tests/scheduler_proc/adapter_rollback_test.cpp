// Rollbacks of an adapter to the version that the last load of its name replaced, and partial
// updates, which begin with the serving version.
#include "tests/scheduler_proc/adapters_fixture.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using messages::AdapterId;
using messages::AdapterPolicy;

class AdapterRollback : public AdaptersTest {
  protected:
    messages::UpdatePart stage_part(std::uint64_t id, std::string base_digest = "") {
        messages::UpdateSpec spec =
            spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
        spec.adapter = "a";
        spec.partial = true;
        spec.base_digest = std::move(base_digest);
        order_stage(std::move(spec), Epoch{static_cast<std::int64_t>(id)}, messages::UpdateId{id});
        return answer();
    }
    messages::AdapterStatus status() { return rig.status().adapters.at(0); }
};

TEST_F(AdapterRollback, P2_AVersionThatWasSentHasNoDirectoryEvenIfItsSourceNamesOne) {
    messages::UpdateSpec spec = spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
    spec.adapter = "a";
    spec.adapter_config = "{}";
    spec.source.kind = messages::SourceKind::kTensors;
    spec.source.format = messages::TensorFormat::kPickle;
    spec.source.payloads.emplace_back();
    ASSERT_EQ(spec.source.path, "/models/next");
    order_stage(std::move(spec), Epoch{3}, messages::UpdateId{3});
    const messages::UpdatePart staged = answer();
    ASSERT_TRUE(staged.ok) << staged.verdict.message;
    commit(3);
    EXPECT_EQ(status().path, "");
}

TEST_F(AdapterRollback, P2_ItReturnsToTheVersionThatTheLastLoadReplaced) {
    load("a", 3);
    const messages::AdapterVersion before = status().adapter;
    load("a", 4);
    EXPECT_NE(status().adapter.digest, before.digest);
    EXPECT_EQ(status().previous, before);
    const messages::UpdatePart back = roll_back("a", 5);
    EXPECT_EQ(rig.workers.last_stage().begins_as, AdapterId{3});
    EXPECT_TRUE(rig.workers.last_stage().rollback);
    messages::AdapterVersion now = before;
    now.version = Epoch{5};
    EXPECT_EQ(status().adapter, now) << "the old label and digest under a new number";
    EXPECT_EQ(status().path, "/models/next");
    EXPECT_FALSE(status().pinned);
    EXPECT_EQ(raw(status().previous.value_or(messages::AdapterVersion{}).version), 4);
    const Ask ask = ask_of("a");
    const RequestKey key = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, expected(ask, 3).tokens);
    EXPECT_EQ(*rig.of(key).adapter, now);
    EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}}));
    EXPECT_EQ(rig.status().epoch, Epoch{1}) << "the model's version is its own";
    roll_back("a", 6);  // forward again
    const RequestKey forward = rig.send(ask);
    rig.run();
    EXPECT_EQ(rig.of(forward).tokens, by_spans(ask, rig.of(forward)));
    EXPECT_EQ(rig.workers.origin_of(AdapterId{6}), AdapterId{4});
    EXPECT_EQ(resident(), (std::set{AdapterId{5}, AdapterId{6}}));
    EXPECT_TRUE(unload("a").verdict.is_done());
    rig.run();
    EXPECT_TRUE(resident().empty());
}

TEST_F(AdapterRollback, P2_ASessionBeginsWithTheServingVersionAndGivesUpTheOneBefore) {
    load("a", 3);
    load("a", 4);
    messages::UpdateSpec spec = spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
    spec.adapter = "a";
    spec.partial = true;
    spec.source = {.kind = messages::SourceKind::kBuckets};
    order_stage(std::move(spec), Epoch{5}, messages::UpdateId{5});
    for (int i = 0; i < 3; ++i) rig.step();
    EXPECT_EQ(rig.workers.last_stage().begins_as, AdapterId{4});
    EXPECT_EQ(status().previous, std::nullopt);
    EXPECT_EQ(resident(), (std::set{AdapterId{4}}));
}

TEST_F(AdapterRollback, P3_OpenRequestsContinueAsItsCallerChooses) {
    for (const AdapterPolicy policy :
         {AdapterPolicy::kFinish, AdapterPolicy::kKeep, AdapterPolicy::kRecompute}) {
        SCOPED_TRACE(messages::name_of(policy));
        Rig fresh({.tp = 2, .num_pages = 128});
        std::swap(rig, fresh);
        load("a", 3);
        const Ask ask = ask_of("a");
        const RequestKey older = rig.send(ask);
        rig.turn();
        for (int i = 0; i < 4; ++i) rig.step();
        load("a", 4);
        const RequestKey key = rig.send(ask);
        rig.turn();
        for (int i = 0; i < 4; ++i) rig.step();
        const messages::UpdatePart back = roll_back("a", 5, policy);
        EXPECT_EQ(back.outcome.num_recomputed, policy == AdapterPolicy::kRecompute ? 1 : 0);
        rig.run();
        EXPECT_EQ(versions_of(rig.of(older)), std::vector<std::int64_t>{3}) << "it ends with it";
        EXPECT_EQ(rig.of(older).tokens, expected(ask, 3).tokens);
        const auto both = std::vector<std::int64_t>{4, 5};
        EXPECT_EQ(
            versions_of(rig.of(key)),
            policy == AdapterPolicy::kFinish ? std::vector<std::int64_t>{4} : both
        );
        EXPECT_EQ(rig.of(key).tokens, by_spans(ask, rig.of(key)));
        EXPECT_EQ(
            rig.of(key).spans.back().kv_min_adapter,
            policy == AdapterPolicy::kRecompute ? Epoch{5} : Epoch{4}
        );
        EXPECT_EQ(resident(), (std::set{AdapterId{4}, AdapterId{5}}));
    }
}

// The tensors are the same, the versions are not: each has prefixes of its own.
TEST_F(AdapterRollback, P9_NoPrefixOfTheVersionsBeforeIsUsed) {
    const Ask ask = ask_of("a");
    const auto cached = [&] {
        const RequestKey key = rig.send(ask);
        rig.run();
        return rig.of(key).counts->cached_tokens;
    };
    load("a", 3);
    EXPECT_EQ(cached(), 0);
    load("a", 4);
    EXPECT_EQ(cached(), 0);
    roll_back("a", 5);
    EXPECT_EQ(cached(), 0);
    EXPECT_EQ(cached(), 12);
}

TEST_F(AdapterRollback, WithoutAPreviousVersionItIsRefused) {
    const auto refusal = [&](const std::string& name, std::uint64_t id) {
        const messages::UpdatePart part = stage_rollback(name, id);
        EXPECT_FALSE(part.ok);
        return fmt::format("{}: {}", messages::name_of(*part.verdict.code), part.verdict.message);
    };
    const std::string none =
        "failed_precondition: no previous version of adapter 'a' is retained: nothing was "
        "committed since its last stage began; load that version again";
    load("a", 3);
    EXPECT_EQ(refusal("a", 4), none);
    EXPECT_EQ(refusal("b", 5), "not_found: no adapter 'b' is loaded; loaded are 'a'");
    load("b", 6);
    EXPECT_EQ(refusal("a", 7), none) << "a load of another name is none of this one";
    load("a", 8);
    load("b", 9);
    rig.workers.stage_failures[1] = "k_proj.lora_A is missing";
    EXPECT_FALSE(stage("a", 10).ok);
    EXPECT_EQ(
        refusal("b", 11), "failed_precondition: rollback of update 11: update 10 is under way"
    );
    order(messages::UpdateDrop{.update = messages::UpdateId{10}});
    EXPECT_TRUE(answer().ok);
    rig.workers.stage_failures[1].reset();
    EXPECT_EQ(refusal("a", 12), none) << "a stage began, and failed";
    EXPECT_FALSE(status().previous);
    roll_back("b", 13);
    EXPECT_TRUE(unload("b").verdict.is_done());
    load("b", 14);
    EXPECT_EQ(rig.status().adapters[1].previous, std::nullopt);
}

TEST_F(AdapterRollback, P2_OneThatFailsChangesNothingAndMayBeTriedAgain) {
    load("a", 3);
    load("a", 4);
    rig.workers.stage_failures[0] = "the file has other bytes";
    EXPECT_FALSE(stage_rollback("a", 5).ok);
    order(messages::UpdateDrop{.update = messages::UpdateId{5}});
    EXPECT_TRUE(answer().ok);
    EXPECT_EQ(raw(status().adapter.version), 4);
    rig.workers.stage_failures[0].reset();
    roll_back("a", 6);
    EXPECT_EQ(raw(status().adapter.version), 6);
    EXPECT_EQ(rig.workers.origin_of(AdapterId{6}), AdapterId{3});
}

// A pin belongs to a version, not to its name.
TEST_F(AdapterRollback, ThePinComesBack) {
    load("a", 3, AdapterPolicy::kFinish, AdapterPlaces::Pinned::kYes);
    load("a", 4);
    EXPECT_FALSE(status().pinned);
    roll_back("a", 5);
    EXPECT_TRUE(status().pinned);
    ASSERT_TRUE(stage_part(6).ok);
    commit(6);
    EXPECT_TRUE(status().pinned) << "a partial update keeps it";
}

TEST_F(AdapterRollback, APartialUpdateBeginsWithTheServingVersion) {
    EXPECT_EQ(stage_part(2).verdict.code, ErrorCode::kNotFound);
    load("a", 3);
    EXPECT_FALSE(rig.workers.last_stage().begins_as);
    load("a", 4);
    const std::string digest = status().adapter.digest;
    const messages::UpdatePart other = stage_part(5, std::string(32, 'e'));
    EXPECT_EQ(other.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(
        other.verdict.message,
        "the update needs the version of adapter 'a' with digest " + std::string(32, 'e') +
            "; the one that serves has " + digest
    );
    EXPECT_TRUE(status().previous) << "a refused stage gives up nothing";
    ASSERT_TRUE(stage_part(6, digest).ok);
    EXPECT_EQ(rig.workers.last_stage().begins_as, AdapterId{4});
    EXPECT_FALSE(rig.workers.last_stage().rollback);
    commit(6);
    EXPECT_EQ(status().path, "") << "the directory has only a part";
    EXPECT_EQ(raw(status().previous.value_or(messages::AdapterVersion{}).version), 4);
    roll_back("a", 7);
    EXPECT_EQ(status().adapter.digest, digest);
    EXPECT_EQ(status().path, "/models/next");
}

}  // namespace
}  // namespace pitstop::scheduler
