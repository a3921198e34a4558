// Decides how many drafts a pass has (--speculate auto): the number that yields tokens fastest.
//
// As passes end, their durations are measured by number of tokens. Drafts cost nothing while a pass
// is bound by reading weights, and much once it is bound by arithmetic. Of the offered drafts, the
// likeliest are taken, as long as the expected outputs per second rise. A prompt's tokens are
// computed in any case, so the time they take is not counted against drafts.
//
// A pass that runs while nothing is planned takes longer than one that overlaps with planning.
// Passes with drafts run so. They are compared with plain passes that overlap with planning, so
// that drafts are charged for the lost overlap. Now and then a pass has no drafts, or more than
// seem worthwhile, so that both durations stay measured.
//
// Thread:  the loop thread only.
// Bounded: kBuckets durations.
#pragma once

#include "base/time.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::scheduler {

class DraftBudget {
  public:
    struct Pass {
        std::int64_t num_tokens = 0;  // of all rows, with drafts
        std::int64_t num_rows = 0;
        std::int64_t num_drafts = 0;
        bool is_alone = false;  // planned while no other pass ran
        Duration took{};        // since the previous pass ended, or since this one was sent
    };
    void note_pass(const Pass& pass);

    // A draft that a row may have.
    struct Offer {
        double likelihood = 0;  // probability that it and all earlier drafts of its row are right
        std::size_t row = 0;
    };
    // Sorts by likelihood, highest first. Equal offers keep their order, so the offers of one row
    // keep theirs.
    static void sort(std::vector<Offer>& offers);

    // Returns how many of the sorted offers to verify. Without drafts, the pass has `num_tokens`
    // tokens; `num_outputs` of its rows have one token.
    [[nodiscard]] std::size_t choose(
        std::int64_t num_tokens, std::int64_t num_outputs, std::span<const Offer> offers
    );
    // Returns whether choose() would return more than 0 for `num_outputs` rows of one token each.
    [[nodiscard]] bool is_worth(std::int64_t num_outputs, std::span<const Offer> offers) const;

    // Returns the expected seconds of a pass; 0: nothing is measured. Interpolates between measured
    // sizes. Above the largest size, returns that size's duration, so that larger passes are tried.
    [[nodiscard]] double seconds(std::int64_t num_tokens) const;

  private:
    // Each size up to kExact has a bucket of its own. Each later bucket ends at 1.25 times the size
    // at which the previous one ends.
    static constexpr std::size_t kExact = 8;
    static constexpr double kGrowth = 1.25;
    static constexpr std::size_t kBuckets = 64;
    static constexpr std::int64_t kDearAfter = 16;
    struct Bucket {
        std::int64_t num = 0;          // passes of this size, ever
        std::int64_t measured_at = 0;  // num_passes_ at the latest measurement
        double tokens = 0;             // `tokens` and `seconds` are means of the latest passes
        double seconds = 0;
    };
    struct Point {
        double tokens = 0;
        double seconds = 0;
        std::int64_t measured_at = 0;
    };
    static std::size_t bucket_of(std::int64_t num_tokens);
    void draw_curve();
    [[nodiscard]] bool is_measured(std::int64_t num_tokens) const;
    [[nodiscard]] std::size_t best(
        std::int64_t num_tokens, std::int64_t num_outputs, std::span<const Offer> offers
    ) const;

    std::array<Bucket, kBuckets> buckets_{};
    std::vector<Point> curve_{};  // of measured sizes; tokens and seconds both ascend
    std::int64_t num_passes_ = 0;
    bool wants_plain_ = false;  // no drafts until a pass without drafts is measured
    bool wants_dear_ = false;   // the next plan has more drafts than seem worthwhile, as a trial
    std::int64_t next_dear_ = kDearAfter;
    std::int64_t dear_after_ = kDearAfter;  // passes until the next trial
};

}  // namespace pitstop::scheduler
