// A replica, and the door's messages that load adapters into it.
#pragma once

#include "tests/scheduler_proc/rig.h"
#include "tests/scheduler_proc/update_fixture.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::scheduler {

class AdaptersTest : public UpdateTest {
  protected:
    messages::UpdatePart stage(
        const std::string& name,
        std::uint64_t id,
        messages::AdapterPolicy policy = messages::AdapterPolicy::kFinish,
        AdapterPlaces::Pinned pinned = AdapterPlaces::Pinned::kNo
    ) {
        messages::UpdateSpec spec =
            spec_of(messages::UpdateMode::kStaged, messages::KvPolicy::kKeep);
        spec.adapter = name;
        spec.adapter_policy = policy;
        spec.adapter_pinned = pinned == AdapterPlaces::Pinned::kYes;
        order_stage(std::move(spec), Epoch{static_cast<std::int64_t>(id)}, messages::UpdateId{id});
        return answer();
    }
    messages::UpdatePart load(
        const std::string& name,
        std::uint64_t id,
        messages::AdapterPolicy policy = messages::AdapterPolicy::kFinish,
        AdapterPlaces::Pinned pinned = AdapterPlaces::Pinned::kNo
    ) {
        const messages::UpdatePart staged = stage(name, id, policy, pinned);
        EXPECT_TRUE(staged.ok) << staged.verdict.message;
        return commit(id);
    }
    // Rolls the name back, up to the ranks' votes.
    messages::UpdatePart stage_rollback(
        const std::string& name,
        std::uint64_t id,
        messages::AdapterPolicy policy = messages::AdapterPolicy::kFinish
    ) {
        order(messages::UpdateRollback{
            .update = messages::UpdateId{id},
            .new_epoch = Epoch{static_cast<std::int64_t>(id)},
            .adapter = name,
            .adapter_policy = policy});
        return answer();
    }
    messages::UpdatePart roll_back(
        const std::string& name,
        std::uint64_t id,
        messages::AdapterPolicy policy = messages::AdapterPolicy::kFinish
    ) {
        const messages::UpdatePart staged = stage_rollback(name, id, policy);
        EXPECT_TRUE(staged.ok) << staged.verdict.message;
        return commit(id);
    }
    messages::UpdatePart commit(std::uint64_t id) {
        const messages::UpdateId update{id};
        order(messages::UpdateReady{.update = update, .kv_policy = messages::KvPolicy::kKeep});
        EXPECT_TRUE(answer().ok);
        order(messages::UpdateCommit{.update = update});
        messages::UpdatePart committed = answer();
        EXPECT_TRUE(committed.ok) << committed.verdict.message;
        return committed;
    }
    messages::AdapterPart unload(const std::string& name) {
        order(messages::UnloadAdapter{.call = CallId{7}, .name = name});
        const auto parts = rig.take<messages::AdapterPart>();
        EXPECT_EQ(parts.size(), 1u);
        return parts.empty() ? messages::AdapterPart{} : parts[0];
    }
    static Ask ask_of(std::string adapter, std::int64_t first = 100) {
        return {
            .prompt = prompt_of(13, first), .max_new_tokens = 24, .adapter = std::move(adapter)};
    }
    // The output of the model with this version; 0: of the model alone.
    Received expected(const Ask& ask, std::uint64_t id) {
        std::optional<messages::AdapterId> adapter;
        if (id != 0) adapter = messages::AdapterId{id};
        return Rig::expected(rig.workers.model().adapted(adapter), ask);
    }
    // The model's output for `ask`, each token with the version that its span names.
    std::vector<TokenId> by_spans(const Ask& ask, const Received& got) {
        std::vector<TokenId> context = ask.prompt;
        std::int64_t index = 0;
        for (const messages::Span& span : got.spans) {
            std::optional<messages::AdapterId> adapter;
            if (span.adapter) {
                adapter = rig.workers.origin_of(messages::AdapterId{
                    static_cast<std::uint64_t>(raw(span.adapter->version))});
            }
            const FakeModel model = rig.workers.model().adapted(adapter);
            for (std::int64_t i = 0; i < span.tokens; ++i) {
                context.push_back(fake_next_token(
                    model, context, ask.sampling, rig.workers.model().eos_ids, index++
                ));
            }
        }
        context.erase(context.begin(), context.begin() + std::ssize(ask.prompt));
        return context;
    }
    // The adapter versions of the received tokens, in order; a run of equal versions counts once.
    static std::vector<std::int64_t> versions_of(const Received& got) {
        std::vector<std::int64_t> versions;
        for (const messages::Span& span : got.spans) {
            const std::int64_t version = span.adapter ? raw(span.adapter->version) : 0;
            if (versions.empty() || versions.back() != version) versions.push_back(version);
        }
        return versions;
    }
    std::set<messages::AdapterId> resident() const { return rig.workers.adapters(); }
};

}  // namespace pitstop::scheduler
