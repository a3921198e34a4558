#include "scheduler_proc/draft_budget.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace pitstop::scheduler {
namespace {

// A mean is over about this many of the latest passes: contexts grow, and so do durations.
constexpr std::int64_t kRecent = 16;

// Drafts must let outputs come faster by this factor at least. A step with drafts is not planned
// while the one before runs, and durations are measured with noise.
constexpr double kWorthwhile = 1.03;

// One in so many passes has no drafts, or again some after so many that were too dear.
constexpr std::int64_t kPlainEvery = 64;
constexpr std::int64_t kDearEvery = 256;

}  // namespace

std::size_t DraftBudget::bucket_of(std::int64_t num_tokens) {
    const auto exact = static_cast<std::int64_t>(kExact);
    if (num_tokens <= exact) return static_cast<std::size_t>(std::max<std::int64_t>(num_tokens, 1));
    const double times = static_cast<double>(num_tokens) / static_cast<double>(kExact);
    const double steps = std::ceil(std::log(times) / std::log(kGrowth));
    return std::min(kBuckets - 1, kExact + static_cast<std::size_t>(steps));
}

void DraftBudget::note_pass(std::int64_t num_tokens, Duration took) {
    Bucket& bucket = buckets_[bucket_of(num_tokens)];
    bucket.num = std::min(bucket.num + 1, kRecent);
    const double share = 1.0 / static_cast<double>(bucket.num);
    const double seconds = std::chrono::duration<double>(took).count();
    bucket.tokens += (static_cast<double>(num_tokens) - bucket.tokens) * share;
    bucket.seconds += (seconds - bucket.seconds) * share;
}

double DraftBudget::seconds(std::int64_t num_tokens) const {
    const auto tokens = static_cast<double>(num_tokens);
    const Bucket* below = nullptr;
    const Bucket* above = nullptr;
    for (const Bucket& bucket : buckets_) {  // by size
        if (bucket.num == 0) continue;
        if (bucket.tokens <= tokens) {
            below = &bucket;
        } else {
            above = &bucket;
            break;
        }
    }
    if (below == nullptr) return above == nullptr ? 0.0 : above->seconds;
    if (above == nullptr) return below->seconds;
    const double part = (tokens - below->tokens) / (above->tokens - below->tokens);
    return below->seconds + part * std::max(above->seconds - below->seconds, 0.0);
}

// A pass of twice the size at most costs little once in kDearEvery.
std::size_t DraftBudget::choose(
    std::int64_t num_tokens, std::int64_t num_outputs, std::span<const double> likelihoods
) {
    if (likelihoods.empty()) return 0;
    if (std::exchange(tries_dear_, false))
        return std::min(likelihoods.size(), static_cast<std::size_t>(num_tokens));
    if (++num_chosen_ % kPlainEvery == 0) return 0;
    return best(num_tokens, num_outputs, likelihoods);
}

bool DraftBudget::is_worth(
    std::int64_t num_tokens, std::int64_t num_outputs, std::span<const double> likelihoods
) {
    if (likelihoods.empty()) return false;
    if (tries_dear_ || best(num_tokens, num_outputs, likelihoods) > 0) return true;
    tries_dear_ = ++num_dear_ % kDearEvery == 0;
    return tries_dear_;
}

std::size_t DraftBudget::best(
    std::int64_t num_tokens, std::int64_t num_outputs, std::span<const double> likelihoods
) const {
    const double alone = seconds(num_tokens);
    if (alone <= 0) return likelihoods.size();
    auto outputs = static_cast<double>(num_outputs);
    const double without = outputs / alone;
    double most = without * kWorthwhile;
    std::size_t best = 0;
    for (std::size_t i = 0; i < likelihoods.size(); ++i) {
        outputs += likelihoods[i];
        const double rate = outputs / seconds(num_tokens + static_cast<std::int64_t>(i) + 1);
        if (rate < most) continue;
        most = rate;
        best = i + 1;
    }
    return best;
}

}  // namespace pitstop::scheduler
