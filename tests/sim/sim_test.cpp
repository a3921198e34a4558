// Random schedules over the real cores. One that fails prints its seed; run it alone with
//   pitstop_sim --first SEED --num 1
#include "tests/sim/world.h"

#include <gtest/gtest.h>

namespace pitstop::sim {
namespace {

constexpr std::uint64_t kSchedules = 2000;
constexpr std::uint64_t kSchedulesWithAdapters = 2200;
constexpr std::uint64_t kSchedulesWithExperts = 1000;

void add(const Report& report, Report& all) {
    all.num_tokens += report.num_tokens;
    all.num_requests_split += report.num_requests_split;
    all.num_spans_mixed += report.num_spans_mixed;
    all.num_cache_hits += report.num_cache_hits;
    all.num_scores_checked += report.num_scores_checked;
    all.num_scorings_cut += report.num_scorings_cut;
    all.num_commits += report.num_commits;
    all.num_drops += report.num_drops;
    all.num_torn += report.num_torn;
    all.num_not_finite += report.num_not_finite;
    all.num_not_finite_again += report.num_not_finite_again;
    all.num_told_serving += report.num_told_serving;
    all.num_words_withheld += report.num_words_withheld;
    all.num_late_answers += report.num_late_answers;
    all.num_retractions += report.num_retractions;
    all.num_drafted += report.num_drafted;
    all.num_drafts_accepted += report.num_drafts_accepted;
    all.num_states_saved += report.num_states_saved;
    all.num_states_restored += report.num_states_restored;
    all.num_states_evicted += report.num_states_evicted;
    all.num_tokens_replayed += report.num_tokens_replayed;
    all.num_releases += report.num_releases;
    all.num_discards += report.num_discards;
    all.num_sessions += report.num_sessions;
    all.num_buckets += report.num_buckets;
    all.num_sessions_committed += report.num_sessions_committed;
    all.num_sessions_expired += report.num_sessions_expired;
    all.num_sessions_taken_over += report.num_sessions_taken_over;
    all.num_sessions_mixed += report.num_sessions_mixed;
    all.num_sessions_lacking += report.num_sessions_lacking;
    all.num_unnamed_buckets += report.num_unnamed_buckets;
    all.num_collected += report.num_collected;
    all.num_collections_committed += report.num_collections_committed;
    all.num_collections_lost += report.num_collections_lost;
    all.num_sets_whole += report.num_sets_whole;
    all.num_sets_mixed += report.num_sets_mixed;
    all.num_trainers_told += report.num_trainers_told;
    all.num_texts += report.num_texts;
    all.num_adapter_loads += report.num_adapter_loads;
    all.num_adapter_rollbacks += report.num_adapter_rollbacks;
    all.num_adapter_parts += report.num_adapter_parts;
    all.num_adapter_sparse_parts += report.num_adapter_sparse_parts;
    all.num_adapter_sessions += report.num_adapter_sessions;
    all.num_adapter_sessions_committed += report.num_adapter_sessions_committed;
    all.num_adapter_sessions_expired += report.num_adapter_sessions_expired;
    for (std::size_t i = 0; i < all.num_adapter_calls_failed.size(); ++i)
        all.num_adapter_calls_failed[i] += report.num_adapter_calls_failed[i];
    all.num_adapter_tokens += report.num_adapter_tokens;
    all.num_adapter_tokens_mixed += report.num_adapter_tokens_mixed;
    all.num_adapter_evictions += report.num_adapter_evictions;
    all.num_adapters_not_evicted += report.num_adapters_not_evicted;
    all.num_adapter_restores += report.num_adapter_restores;
    all.num_adapters_forgotten += report.num_adapters_forgotten;
    all.num_route_rows += report.num_route_rows;
    all.num_route_rows_brought += report.num_route_rows_brought;
    all.num_routes_mixed += report.num_routes_mixed;
}

TEST(Sim, P1ToP5_P9_P11_HoldInEverySchedule) {
    Report all;
    for (std::uint64_t seed = 1; seed <= kSchedules; ++seed) {
        const Report report = World(seed).run();
        ASSERT_FALSE(report.problem) << "seed " << seed << ": " << *report.problem;
        add(report, all);
    }
    // A check that never meets its case cannot fail: the schedules must reach every corner.
    EXPECT_GT(all.num_tokens, 100'000);
    EXPECT_GT(all.num_requests_split, 200);
    EXPECT_GT(all.num_spans_mixed, 500);
    EXPECT_GT(all.num_cache_hits, 2000);
    EXPECT_GT(all.num_scores_checked, 50'000);
    EXPECT_GT(all.num_scorings_cut, 30);
    EXPECT_GT(all.num_commits, 2000);
    EXPECT_GT(all.num_drops, 500);
    EXPECT_GT(all.num_torn, 50);
    EXPECT_GT(all.num_not_finite, 200);
    EXPECT_GT(all.num_not_finite_again, 200);
    EXPECT_GT(all.num_told_serving, 5000);
    EXPECT_GT(all.num_words_withheld, 50);
    EXPECT_GT(all.num_late_answers, 2000);
    EXPECT_GT(all.num_retractions, 500);
    EXPECT_GT(all.num_drafts_accepted, 5000);
    EXPECT_GT(all.num_drafted - all.num_drafts_accepted, 1000);
    EXPECT_GT(all.num_states_saved, 5000);
    EXPECT_GT(all.num_states_restored, 500);
    EXPECT_GT(all.num_states_evicted, 1000);
    EXPECT_GT(all.num_tokens_replayed, 500);
    EXPECT_GT(all.num_releases, 2000);
    EXPECT_GT(all.num_discards, 200);
    EXPECT_GT(all.num_sessions, 2000);
    EXPECT_GT(all.num_buckets, 2000);
    EXPECT_GT(all.num_sessions_committed, 2000);
    EXPECT_GT(all.num_sessions_expired, 200);
    EXPECT_GT(all.num_sessions_taken_over, 200);
    EXPECT_GT(all.num_sessions_mixed, 10);
    EXPECT_GT(all.num_sessions_lacking, 10);
    EXPECT_GT(all.num_unnamed_buckets, 200);
    EXPECT_GT(all.num_collected, 2000);
    EXPECT_GT(all.num_collections_committed, 500);
    EXPECT_GT(all.num_collections_lost, 100);
    EXPECT_GT(all.num_sets_whole, 500);
    EXPECT_GT(all.num_sets_mixed, 50);
    EXPECT_GT(all.num_trainers_told, 100);
    EXPECT_GT(all.num_texts, 2000);
}

// The same, while adapters are loaded in one call or in sessions, replaced, changed in part, rolled
// back, unloaded, evicted and restored.
TEST(Sim, P1ToP5_P9_P11_HoldInEveryScheduleWithAdapters) {
    Report all;
    for (std::uint64_t seed = 1; seed <= kSchedulesWithAdapters; ++seed) {
        const Report report = World(seed, World::Adapters::kYes).run();
        ASSERT_FALSE(report.problem) << "seed " << seed << ", with adapters: " << *report.problem;
        add(report, all);
    }
    EXPECT_GT(all.num_adapter_loads, 2000);
    for (const std::int64_t num : all.num_adapter_calls_failed) EXPECT_GT(num, 200);
    EXPECT_GT(all.num_adapter_rollbacks, 100);
    EXPECT_GT(all.num_adapter_parts, 300);
    EXPECT_GT(all.num_adapter_sparse_parts, 50);
    EXPECT_GT(all.num_adapter_sessions, 1000);
    EXPECT_GT(all.num_adapter_sessions_committed, 200);
    EXPECT_GT(all.num_adapter_sessions_expired, 80);
    EXPECT_GT(all.num_adapter_tokens, 10'000);
    EXPECT_GT(all.num_adapter_tokens_mixed, 100);
    EXPECT_GT(all.num_adapter_evictions, 500);
    EXPECT_GT(all.num_adapters_not_evicted, 50);
    EXPECT_GT(all.num_adapter_restores, 200);
    EXPECT_GT(all.num_adapters_forgotten, 1000);
    EXPECT_GT(all.num_commits, 500);
    EXPECT_GT(all.num_scores_checked, 10'000);
    EXPECT_GT(all.num_retractions, 100);
}

// The same with experts. Every token's routes are those that its request brings, or else those that
// its version's router chose. The returned routes are those used. Half of the schedules have
// adapters, too.
TEST(Sim, P1ToP5_P9_P11_HoldInEveryScheduleWithExperts) {
    Report all;
    for (std::uint64_t seed = 1; seed <= kSchedulesWithExperts; ++seed) {
        const auto adapters = seed % 2 == 0 ? World::Adapters::kYes : World::Adapters::kNo;
        const Report report = World(seed, adapters, World::Experts::kYes).run();
        ASSERT_FALSE(report.problem) << "seed " << seed << ", with experts: " << *report.problem;
        add(report, all);
    }
    EXPECT_GT(all.num_route_rows, 30'000);
    EXPECT_GT(all.num_route_rows_brought, 5000);
    EXPECT_GT(all.num_routes_mixed, 100);
    EXPECT_GT(all.num_cache_hits, 500);
    EXPECT_GT(all.num_scores_checked, 10'000);
    EXPECT_GT(all.num_retractions, 100);
    EXPECT_GT(all.num_drafts_accepted, 1000);
    EXPECT_GT(all.num_commits, 500);
}

TEST(Sim, AScheduleIsTheSameEveryTime) {
    for (const std::uint64_t seed : {3u, 77u, 1234u}) {
        const Report first = World(seed).run();
        const Report second = World(seed).run();
        EXPECT_EQ(first.num_events, second.num_events);
        EXPECT_EQ(first.num_tokens, second.num_tokens);
        EXPECT_EQ(first.num_requests_split, second.num_requests_split);
    }
}

}  // namespace
}  // namespace pitstop::sim
