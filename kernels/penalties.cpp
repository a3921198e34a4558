#include "kernels/penalties.h"

#include "kernels/reference.h"

#include <algorithm>
#include <limits>

namespace pitstop::kernels {
namespace {

// Bans every id whose bit in the mask of row r is 0. Most words are all zeros or all ones.
void apply_mask(const PenaltyArgs& args, std::int64_t r) {
    constexpr float kBanned = -std::numeric_limits<float>::infinity();
    constexpr std::int64_t kBits = 32;
    float* const logits = args.logits.data + r * args.logits.stride;
    const std::uint32_t* const mask = args.masks + args.mask_of[r] * args.mask_words;
    const std::int64_t end = args.vocab_begin + args.logits.cols;
    for (std::int64_t id = args.vocab_begin; id < end;) {
        const std::int64_t word_end = std::min((id / kBits + 1) * kBits, end);
        const std::uint32_t word = mask[id / kBits];
        if (word == ~std::uint32_t{0}) {
            id = word_end;
            continue;
        }
        for (; id < word_end; ++id) {
            if ((word >> (id % kBits) & 1) == 0) logits[id - args.vocab_begin] = kBanned;
        }
    }
}

// Applies the penalties, computing in `Real`: double or float. Each entry changes one logit.
template <class Real>
void apply(const PenaltyArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        float* const logits = args.logits.data + r * args.logits.stride;
        const PenaltyRow& row = args.rows[r];
        const auto logit_of = [&](TokenId id) -> float* {  // null: belongs to another rank
            const std::int64_t index = std::int64_t{raw(id)} - args.vocab_begin;
            return index >= 0 && index < args.logits.cols ? logits + index : nullptr;
        };
        for (std::int32_t i = args.count_starts[r]; i < args.count_starts[r + 1]; ++i) {
            const TokenCount& count = args.counts[i];
            float* const logit = logit_of(count.id);
            if (logit == nullptr) continue;
            auto l = static_cast<Real>(*logit);
            l = l > 0 ? l / static_cast<Real>(row.repetition)
                      : l * static_cast<Real>(row.repetition);
            l -= static_cast<Real>(row.frequency) * static_cast<Real>(count.num_output);
            if (count.num_output > 0) l -= static_cast<Real>(row.presence);
            *logit = static_cast<float>(l);
        }
        for (std::int32_t i = args.bias_starts[r]; i < args.bias_starts[r + 1]; ++i) {
            float* const logit = logit_of(args.biases[i].id);
            if (logit != nullptr) {
                *logit = static_cast<float>(
                    static_cast<Real>(*logit) + static_cast<Real>(args.biases[i].bias)
                );
            }
        }
        if (args.mask_of != nullptr && args.mask_of[r] >= 0) apply_mask(args, r);
    }
}

}  // namespace

void check(const PenaltyArgs& args) {
    CHECK(is_valid(args.logits));
    if (args.logits.rows == 0) return;
    CHECK(args.rows != nullptr && args.count_starts != nullptr && args.bias_starts != nullptr);
    CHECK(args.counts != nullptr || args.count_starts[args.logits.rows] == 0);
    CHECK(args.biases != nullptr || args.bias_starts[args.logits.rows] == 0);
    if (args.mask_of == nullptr) return;
    CHECK(args.masks != nullptr);
    CHECK(args.mask_words * 32 >= args.vocab_begin + args.logits.cols);
}

void penalties_ref(const PenaltyArgs& args) { apply<double>(args); }

// One thread is enough: a row has a few hundred scattered entries, or a mask.
void penalties_cpu(const PenaltyArgs& args) { apply<float>(args); }

}  // namespace pitstop::kernels
