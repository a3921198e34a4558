// Decides how many drafts a pass has (--speculate auto): as many as let tokens come fastest.
//
// The duration of a pass by its number of tokens is measured as passes end. Drafts cost nothing
// while a pass is bound by reading weights, and much once it is bound by arithmetic. Of the drafts
// that requests offer, the likeliest are taken, as long as the expected outputs per second rise.
// Now and then a pass has none, or some that were too dear, to measure again.
//
// Thread:  the loop thread only.
// Bounded: kBuckets durations.
#pragma once

#include "base/time.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pitstop::scheduler {

class DraftBudget {
  public:
    // A pass over `num_tokens` tokens took this long.
    void note_pass(std::int64_t num_tokens, Duration took);

    // Returns how many of the drafts to verify in a pass over `num_tokens` tokens besides, which
    // samples `num_outputs` outputs besides. `likelihoods`: of each draft, that it and all before
    // it in its row are right; descending.
    [[nodiscard]] std::size_t choose(
        std::int64_t num_tokens, std::int64_t num_outputs, std::span<const double> likelihoods
    );
    // Returns whether choose() is likely to return any.
    [[nodiscard]] bool is_worth(
        std::int64_t num_tokens, std::int64_t num_outputs, std::span<const double> likelihoods
    );

    // Returns the expected seconds of a pass: between two measured sizes in proportion, beyond the
    // largest as that, so that larger passes are tried; 0: nothing is measured.
    [[nodiscard]] double seconds(std::int64_t num_tokens) const;

  private:
    // Sizes up to kExact have a bucket each; each of the others is for sizes up to 1.25 times as
    // large.
    static constexpr std::size_t kExact = 8;
    static constexpr double kGrowth = 1.25;
    static constexpr std::size_t kBuckets = 64;
    struct Bucket {
        std::int64_t num = 0;  // passes, at most kRecent
        double tokens = 0;     // means of the latest passes
        double seconds = 0;
    };
    static std::size_t bucket_of(std::int64_t num_tokens);
    [[nodiscard]] std::size_t best(
        std::int64_t num_tokens, std::int64_t num_outputs, std::span<const double> likelihoods
    ) const;

    std::array<Bucket, kBuckets> buckets_{};
    std::int64_t num_chosen_ = 0;  // calls of choose() with drafts
    std::int64_t num_dear_ = 0;    // answers of is_worth() that no draft is
    bool tries_dear_ = false;
};

}  // namespace pitstop::scheduler
