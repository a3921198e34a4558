#include "scheduler_proc/draft_budget.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace pitstop::scheduler {
namespace {

// Drafts must speed outputs up by at least this factor, because durations are measured with noise.
constexpr double kWorthwhile = 1.03;

// One pass in kPlainEvery has no drafts, to measure the duration of such passes.
constexpr std::int64_t kPlainEvery = 128;

// Tries drafts that seem too expensive, after kDearAfter passes at first. Each trial that confirms
// the price doubles the number of passes before the next trial, up to kDearEvery. At that rate even
// a pass of twice the size costs little.
constexpr std::int64_t kDearEvery = 256;
constexpr std::size_t kDearDrafts = 16;  // in a trial; or as many as the pass has tokens

// A duration is a mean over about this many recent passes, because contexts grow. Of a size's first
// two passes only the shorter one counts, because the longer one may have been interrupted.
constexpr std::int64_t kRecent = 16;
constexpr std::int64_t kSure = 3;

// A mean that is kOld / 2 or more passes old counts as much as the next duration.
constexpr double kOld = 512;

}  // namespace

std::size_t DraftBudget::bucket_of(std::int64_t num_tokens) {
    const auto exact = static_cast<std::int64_t>(kExact);
    if (num_tokens <= exact) return static_cast<std::size_t>(std::max<std::int64_t>(num_tokens, 1));
    const double times = static_cast<double>(num_tokens) / static_cast<double>(kExact);
    const double steps = std::ceil(std::log(times) / std::log(kGrowth));
    return std::min(kBuckets - 1, kExact + static_cast<std::size_t>(steps));
}

void DraftBudget::note_pass(const Pass& pass) {
    ++num_passes_;
    if (num_passes_ % kPlainEvery == 0) wants_plain_ = true;
    if (num_passes_ >= next_dear_) wants_dear_ = true;
    const bool is_plain = pass.num_drafts == 0 && pass.num_tokens == pass.num_rows;
    if (is_plain && pass.is_alone) return;
    if (pass.num_drafts == 0 && !pass.is_alone) wants_plain_ = false;
    Bucket& bucket = buckets_[bucket_of(pass.num_tokens)];
    const double seconds = std::chrono::duration<double>(pass.took).count();
    const auto age =
        static_cast<double>(num_passes_ - std::exchange(bucket.measured_at, num_passes_));
    const double share = std::max(
        1.0 / static_cast<double>(std::min(++bucket.num, kRecent)), std::min(age / kOld, 0.5)
    );
    if (bucket.num > 1 && bucket.num < kSure) {
        bucket.seconds = std::min(bucket.seconds, seconds);
    } else {
        bucket.seconds += (seconds - bucket.seconds) * share;
    }
    bucket.tokens += (static_cast<double>(pass.num_tokens) - bucket.tokens) * share;
    draw_curve();
}

// A larger pass cannot take less time than a smaller one. If measured durations contradict that,
// the newest measurements win.
void DraftBudget::draw_curve() {
    curve_.clear();
    for (const Bucket& bucket : buckets_) {  // by size
        if (bucket.num > 0) curve_.push_back({bucket.tokens, bucket.seconds, bucket.measured_at});
    }
    std::vector<std::size_t> newest(curve_.size());
    std::iota(newest.begin(), newest.end(), std::size_t{0});
    std::ranges::sort(newest, std::greater{}, [&](std::size_t i) { return curve_[i].measured_at; });
    for (std::size_t done = 0; done < newest.size(); ++done) {
        Point& point = curve_[newest[done]];
        for (const std::size_t other : std::span(newest).first(done)) {
            const double seconds = curve_[other].seconds;
            point.seconds = other < newest[done] ? std::max(point.seconds, seconds)
                                                 : std::min(point.seconds, seconds);
        }
    }
}

double DraftBudget::seconds(std::int64_t num_tokens) const {
    if (curve_.empty()) return 0;
    const auto tokens = static_cast<double>(num_tokens);
    const auto above = std::ranges::upper_bound(curve_, tokens, {}, &Point::tokens);
    if (above == curve_.begin()) return above->seconds;
    const auto below = above - 1;
    if (above == curve_.end()) return below->seconds;
    const double part = (tokens - below->tokens) / (above->tokens - below->tokens);
    return below->seconds + part * (above->seconds - below->seconds);
}

// True if the smallest measured size is at most twice this one: larger ones say little about it.
bool DraftBudget::is_measured(std::int64_t num_tokens) const {
    return !curve_.empty() && curve_.front().tokens <= 2 * static_cast<double>(num_tokens);
}

void DraftBudget::sort(std::vector<Offer>& offers) {
    std::ranges::stable_sort(offers, std::greater{}, &Offer::likelihood);
}

std::size_t DraftBudget::choose(
    std::int64_t num_tokens, std::int64_t num_outputs, std::span<const Offer> offers
) {
    if (offers.empty() || wants_plain_ || !is_measured(num_outputs)) return 0;
    const std::size_t num = best(num_tokens, num_outputs, offers);
    if (!std::exchange(wants_dear_, false)) return num;
    next_dear_ = num_passes_ + (num > 0 ? kDearEvery : dear_after_);
    dear_after_ = num > 0 ? kDearAfter : std::min(2 * dear_after_, kDearEvery);
    const std::size_t num_dear = std::max(kDearDrafts, static_cast<std::size_t>(num_tokens));
    return std::max(num, std::min(offers.size(), num_dear));
}

bool DraftBudget::is_worth(std::int64_t num_outputs, std::span<const Offer> offers) const {
    if (offers.empty() || wants_plain_ || !is_measured(num_outputs)) return false;
    return wants_dear_ || best(num_outputs, num_outputs, offers) > 0;
}

std::size_t DraftBudget::best(
    std::int64_t num_tokens, std::int64_t num_outputs, std::span<const Offer> offers
) const {
    const double alone = seconds(num_outputs);
    const double prompts = seconds(num_tokens) - alone;
    auto outputs = static_cast<double>(num_outputs);
    double most = kWorthwhile * outputs / alone;
    std::size_t best = 0;
    for (std::size_t i = 0; i < offers.size(); ++i) {
        outputs += offers[i].likelihood;
        const auto num_after = num_tokens + static_cast<std::int64_t>(i) + 1;
        const double rate = outputs / (seconds(num_after) - prompts);
        if (rate < most) continue;
        most = rate;
        best = i + 1;
    }
    return best;
}

}  // namespace pitstop::scheduler
