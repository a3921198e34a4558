#include "tp_worker/model/standing_arrays.h"

#include "kernels/word_runs.h"
#include "tp_worker/blocks/narrow.h"

#include <cstring>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::int32_t);

std::int32_t word_at(const std::byte* bytes, std::size_t i) {
    std::int32_t word = 0;
    std::memcpy(&word, bytes + i * kWordBytes, kWordBytes);
    return word;
}

}  // namespace

StandingArrays::StandingArrays(std::byte* there, std::int64_t num_bytes)
    : there_(there), words_(static_cast<std::size_t>(num_bytes) / kWordBytes) {}

void StandingArrays::begin_call() {
    used_ = 0;
    runs_.clear();
    values_.clear();
}

// Records differences, in runs; a run includes unchanged words between two differences if that is
// cheaper than another run.
void StandingArrays::compare(std::int64_t begin, const void* array, std::size_t num_bytes) {
    CHECK(used_ <= static_cast<std::int64_t>(words_.size() * kWordBytes));
    const std::size_t at = static_cast<std::size_t>(begin) / kWordBytes;
    if (num_bytes == 0 || std::memcmp(words_.data() + at, array, num_bytes) == 0) return;
    const auto* const bytes = static_cast<const std::byte*>(array);
    const std::size_t num = num_bytes / kWordBytes;
    const auto differs = [&](std::size_t i) { return word_at(bytes, i) != words_[at + i]; };
    for (std::size_t first = 0; first < num; ++first) {
        if (!differs(first)) continue;
        std::size_t end = first + 1;
        for (std::size_t i = end; i < num && i <= end + kernels::WordUpdate::kRunWords; ++i) {
            if (differs(i)) end = i + 1;
        }
        const auto word = [](std::size_t value) {
            return narrow(static_cast<std::int64_t>(value));
        };
        runs_.insert(runs_.end(), {word(at + first), word(end - first), word(values_.size())});
        for (std::size_t i = first; i < end; ++i) {
            words_[at + i] = word_at(bytes, i);
            values_.push_back(words_[at + i]);
        }
        first = end;  // the word at `end` is equal
    }
}

std::span<const std::int32_t> StandingArrays::update() {
    if (runs_.empty()) return {};
    update_ = {
        narrow(std::ssize(runs_) / kernels::WordUpdate::kRunWords), narrow(std::ssize(values_))};
    update_.insert(update_.end(), runs_.begin(), runs_.end());
    update_.insert(update_.end(), values_.begin(), values_.end());
    return update_;
}

}  // namespace pitstop::tp_worker
