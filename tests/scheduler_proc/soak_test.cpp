// Random schedules, small and short; tests/sim does this at length. The rig checks the invariants,
// the KV that every row reads and every chunk after each turn.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <random>

namespace pitstop::scheduler {
namespace {

class Soak {
  public:
    explicit Soak(unsigned seed) : random_(seed), rig_(model(), config()) {}

    void run(int num_events) {
        for (int i = 0; i < num_events; ++i) event();
        rig_.run();
        for (int i = 0; i < 4 && rig_.scheduler.num_open() > 0; ++i) rig_.run();
        EXPECT_EQ(rig_.scheduler.num_open(), 0);
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
        }
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
        };
    }
    SchedulerConfig config() {
        return {.tokens_per_step_max = pick(1, 24), .running_max = pick(1, 8)};
    }

    void event() {
        switch (pick(0, 9)) {
            case 0:
            case 1:
            case 2: {
                Ask ask{
                    .prompt = prompt_of(pick(1, 24), pick(100, 104)),
                    .max_new_tokens = pick(0, 20),
                    .priority = pick(0, 1)};
                ask.logprobs.enabled = true;
                if (pick(0, 3) == 0) ask.logprobs.prompt_start = pick(0, 10);
                ask.sampling.seed = static_cast<std::uint64_t>(pick(0, 3));
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
                rig_.control(EndRequests{
                    .keys = {at->first},
                    .cause = pick(0, 1) ? EndCause::kAbort : EndCause::kPeerGone});
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
    Rig rig_;
    std::map<RequestKey, Ask> asks_{};
    std::set<RequestKey> ended_{};
};

TEST(Soak, P4_P6_RandomSchedulesGiveEveryRequestItsOwnTokens) {
    for (unsigned seed = 1; seed <= 300; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Soak(seed).run(120);
        if (testing::Test::HasFailure()) return;
    }
}

}  // namespace
}  // namespace pitstop::scheduler
