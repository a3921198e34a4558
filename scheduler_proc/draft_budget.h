// Decides how many drafts a pass has (--speculate auto): as many as make tokens arrive fastest.
//
// The duration of a pass, by its number of tokens, is measured as passes end. Drafts cost nothing
// while a pass is bound by reading weights, and much once it is bound by arithmetic. Of the offered
// drafts, the likeliest are taken, as long as the expected outputs per second rise. A prompt's
// tokens in the pass are computed in any case: their time does not count.
//
// A pass during which nothing is planned takes longer than one that overlaps with planning. Drafts
// cause such passes, too, and so are compared with passes that overlap. Now and then a pass has no
// drafts, or some that were too expensive, to measure again.
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
        Duration took{};        // since the pass before ended, or since it was sent
    };
    void note_pass(const Pass& pass);

    // A draft that a row may have.
    struct Offer {
        double likelihood = 0;  // the probability that it and all before it in its row are right
        std::size_t row = 0;
    };
    // Puts the likeliest first, and among equal ones the earlier. A row's own stay in order.
    static void sort(std::vector<Offer>& offers);

    // Returns how many of the sorted offers to verify in a pass that has `num_tokens` tokens
    // besides, of which `num_outputs` are rows of one token.
    [[nodiscard]] std::size_t choose(
        std::int64_t num_tokens, std::int64_t num_outputs, std::span<const Offer> offers
    );
    // Returns whether choose() would return any in a pass of `num_outputs` rows of one token.
    [[nodiscard]] bool is_worth(std::int64_t num_outputs, std::span<const Offer> offers) const;

    // Returns the expected seconds of a pass: between two measured sizes by interpolation, above
    // the largest that size's, so that larger passes are tried; 0: nothing is measured.
    [[nodiscard]] double seconds(std::int64_t num_tokens) const;

  private:
    // Sizes up to kExact have a bucket each; each of the others is for sizes up to 1.25 times as
    // large.
    static constexpr std::size_t kExact = 8;
    static constexpr double kGrowth = 1.25;
    static constexpr std::size_t kBuckets = 64;
    static constexpr std::int64_t kDearAfter = 16;
    struct Bucket {
        std::int64_t num = 0;          // passes ever
        std::int64_t measured_at = 0;  // how many passes there were
        double tokens = 0;             // means of the latest
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
    std::vector<Point> curve_{};  // of measured sizes, both ascending
    std::int64_t num_passes_ = 0;
    bool wants_plain_ = false;  // no drafts until a pass without drafts is measured
    bool wants_dear_ = false;   // the next plan has more drafts than seem worthwhile
    std::int64_t next_dear_ = kDearAfter;
    std::int64_t dear_after_ = kDearAfter;  // passes
};

}  // namespace pitstop::scheduler
