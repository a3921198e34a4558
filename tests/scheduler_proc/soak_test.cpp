// Small random schedules; tests/sim runs long ones. After each turn the rig checks the invariants,
// the KV that every row read, and every chunk.
#include "tests/scheduler_proc/rig.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace pitstop::scheduler {
namespace {

class Soak {
  public:
    explicit Soak(unsigned seed) : random_(seed), rig_(model(), config()) {}

    void run(int num_events) {
        for (int i = 0; i < num_events; ++i) event();
        calm_down();
        for (int i = 0; i < 4 && rig_.scheduler.num_open() > 0; ++i) rig_.run();
        EXPECT_EQ(rig_.scheduler.num_open(), 0);
        EXPECT_EQ(rig_.workers.problems(), std::vector<std::string>{});
        EXPECT_EQ(rig_.status().pages_free + rig_.status().pages_cached, rig_.status().pages_total);
        for (const auto& [key, ask] : asks_) {
            const Received& got = rig_.of(key);
            if (ended_.contains(key)) continue;
            const Received want = rig_.expected(ask);
            ASSERT_TRUE(got.finish) << "request " << raw(key) << " was lost";
            EXPECT_EQ(got.finish->reason, want.finish->reason);
            EXPECT_EQ(got.tokens, want.tokens);
            EXPECT_EQ(got.logprobs, want.logprobs);
            EXPECT_EQ(got.prompt, want.prompt);
            EXPECT_EQ(got.routes.has_value(), want.routes.has_value());
            if (!got.routes || !want.routes) continue;
            EXPECT_EQ(got.routes->start, want.routes->start);
            EXPECT_EQ(got.routes->experts, want.routes->experts);
        }
    }

    [[nodiscard]] bool has_state() const { return num_checkpoints_.has_value(); }
    [[nodiscard]] messages::DraftCounts drafts() const {
        return rig_.status().drafts.value_or(messages::DraftCounts{});
    }

  private:
    std::int64_t pick(std::int64_t low, std::int64_t high) {
        return low +
               static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
    }
    FakeModel model() {
        return {
            .tp = static_cast<int>(pick(1, 2)),
            .num_pages = pick(12, 40),
            .page_size = pick(1, 5),
            .num_slots = pick(1, 8),
            .context_len = pick(20, 60),
            .eos_one_in = pick(0, 1) * 15,
            .routes = messages::RouteShape{.layers = 2, .per_token = 3, .num_experts = 40},
            .state_bytes = num_checkpoints_ ? 64 : 0,
            .num_checkpoints = num_checkpoints_.value_or(0),
        };
    }
    SchedulerConfig config() {
        return {
            .tokens_per_step_max = pick(1, 24),
            .running_max = pick(1, 8),
            .trail_tokens = pick(1, 8),
            .spare_tokens = pick(1, 12),
            .drafts_max = pick(0, 1) * pick(1, 6),
            .has_draft_budget = pick(0, 1) == 1,
            .draft_memory = pick(0, 1) * pick(1000, 20000)};
    }
    // The request's expected output, with some tokens replaced.
    std::vector<TokenId> some_drafts(const Ask& ask) {
        std::vector<TokenId> tokens = rig_.expected(ask).tokens;
        for (TokenId& token : tokens) {
            if (pick(0, 5) == 0) token = static_cast<TokenId>(pick(0, 900));
        }
        return tokens;
    }
    // The number of checkpoints; nothing: the model has no recurrent state.
    std::optional<std::int64_t> some_checkpoints() {
        return pick(0, 1) == 0 ? std::nullopt : std::optional(pick(0, 8));
    }

    // Ends the pause, finishes the current update, and lets all requests end.
    void calm_down() {
        rig_.control(messages::ContinueGeneration{.call = CallId{1}});
        rig_.run();
        for (int i = 0; i < 10 && update_ != messages::UpdateId{}; ++i) {
            handle_answers();
            rig_.run();
        }
        EXPECT_EQ(update_, messages::UpdateId{}) << "an update was never answered";
        // A second later there is nothing more to send.
        rig_.now += std::chrono::seconds(1);
        rig_.run();
        EXPECT_TRUE(rig_.scheduler.turn({.now = rig_.now}).tokenizer.empty());
    }

    // Drives an update as the door does, one order per answer.
    void handle_answers() {
        for (messages::UpdatePart& part : rig_.take<messages::UpdatePart>()) {
            if (part.update != update_) continue;
            if (!part.ok) {
                rig_.control(messages::UpdateDrop{.update = update_});
            } else if (part.order == messages::UpdateOrder::kDrop) {
                update_ = {};
            } else if (part.order == messages::UpdateOrder::kCommit) {
                EXPECT_EQ(part.epoch, rig_.scheduler.version().epoch);
                update_ = {};
            } else if (part.order == messages::UpdateOrder::kStage && !is_ready_) {
                rig_.control(messages::UpdateReady{.update = update_, .kv_policy = policy_});
                is_ready_ = true;
            } else if (part.order == messages::UpdateOrder::kReady && !is_staged_) {
                order_stage();
            } else {
                rig_.control(messages::UpdateCommit{.update = update_});
            }
        }
    }

    void order_stage() {
        messages::UpdateSpec spec;
        spec.source.path = "/models/next";
        spec.mode = is_direct_ ? messages::UpdateMode::kDirect : messages::UpdateMode::kStaged;
        spec.kv_policy = policy_;
        const Epoch epoch = next(rig_.scheduler.version().epoch);
        rig_.control(messages::UpdateStage{.update = update_, .spec = spec, .new_epoch = epoch});
        is_staged_ = true;
    }

    void begin_update() {
        if (update_ != messages::UpdateId{}) return;
        update_ = last_update_ =
            static_cast<messages::UpdateId>(static_cast<std::uint64_t>(last_update_) + 1);
        is_direct_ = pick(0, 2) == 0;
        is_ready_ = is_direct_;
        is_staged_ = false;
        policy_ = static_cast<messages::KvPolicy>(pick(0, 2));  // an abort would hide losses
        if (pick(0, 4) == 0 && !is_direct_) {
            is_staged_ = true;
            const Epoch epoch = next(rig_.scheduler.version().epoch);
            rig_.control(messages::UpdateRollback{.update = update_, .new_epoch = epoch});
        } else if (is_direct_) {
            rig_.control(messages::UpdateReady{.update = update_, .kv_policy = policy_});
        } else {
            order_stage();
        }
    }

    void event() {
        handle_answers();
        switch (pick(0, 13)) {
            case 10:
                begin_update();
                break;
            case 11:
                // Not abort: it would hide losses.
                rig_.control(messages::PauseGeneration{
                    .call = CallId{1},
                    .timeout_ms = pick(0, 1) * 10,
                    .mode = static_cast<messages::PauseMode>(pick(1, 3)),
                    .max_pause_s = 0.01 * static_cast<double>(pick(0, 3))});
                break;
            case 12:
                rig_.control(messages::ContinueGeneration{.call = CallId{1}});
                break;
            case 13:
                rig_.control(messages::FlushCache{
                    .call = CallId{1}, .timeout_ms = 20, .wait_idle = pick(0, 1) == 0});
                break;
            case 0:
            case 1:
            case 2: {
                Ask ask{
                    .prompt = prompt_of(pick(1, 24), pick(100, 104)),
                    .max_new_tokens = pick(0, 20),
                    .priority = pick(0, 1)};
                ask.logprobs.enabled = true;
                if (pick(0, 3) == 0) ask.logprobs.prompt_start = pick(0, 10);
                if (pick(0, 2) == 0) ask.routes_start = pick(0, std::ssize(ask.prompt));
                ask.sampling.seed = static_cast<std::uint64_t>(pick(0, 3));
                if (pick(0, 1) == 0) ask.draft_ids = some_drafts(ask);
                if (pick(0, 3) == 0) ask.draft_key = fmt::format("{}", pick(0, 2));
                const RequestKey key = rig_.send(ask);
                const auto need =
                    static_cast<std::int64_t>(ask.prompt.size()) + *ask.max_new_tokens;
                const FakeModel& m = rig_.workers.model();
                if (need > std::min(m.context_len, m.num_pages * m.page_size)) {
                    ended_.insert(key);  // refused
                }
                asks_.emplace(key, ask);
                break;
            }
            case 3: {
                if (asks_.empty()) break;
                auto at = asks_.begin();
                std::advance(at, pick(0, static_cast<std::int64_t>(asks_.size()) - 1));
                rig_.control(messages::EndRequests{
                    .keys = {at->first},
                    .cause =
                        pick(0, 1) ? messages::EndCause::kAbort : messages::EndCause::kPeerGone});
                ended_.insert(at->first);
                break;
            }
            case 4:
                rig_.turn();
                break;
            default:
                rig_.step();
        }
    }

    std::mt19937_64 random_;
    std::optional<std::int64_t> num_checkpoints_ = some_checkpoints();
    Rig rig_;
    std::map<RequestKey, Ask> asks_{};
    std::set<RequestKey> ended_{};
    messages::UpdateId update_{};  // the update under way; 0: none
    messages::UpdateId last_update_{};
    messages::KvPolicy policy_ = messages::KvPolicy::kKeep;
    bool is_direct_ = false;
    bool is_ready_ = false;   // UpdateReady was sent
    bool is_staged_ = false;  // the stage or the rollback was ordered
};

TEST(Soak, P4_P6_P11_RandomSchedulesGiveEveryRequestItsOwnTokens) {
    messages::DraftCounts drafts;
    messages::DraftCounts over_states;
    for (unsigned seed = 1; seed <= 300; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Soak soak(seed);
        soak.run(120);
        if (testing::Test::HasFailure()) return;
        messages::DraftCounts& counts = soak.has_state() ? over_states : drafts;
        counts.drafted += soak.drafts().drafted;
        counts.accepted += soak.drafts().accepted;
    }
    for (const messages::DraftCounts& counts : {drafts, over_states}) {
        EXPECT_GT(counts.accepted, 800) << "of " << counts.drafted << ": no drafts, no test";
        EXPECT_GT(counts.drafted - counts.accepted, 300) << "none was wrong";
    }
}

}  // namespace
}  // namespace pitstop::scheduler
