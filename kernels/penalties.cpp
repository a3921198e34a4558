#include "kernels/penalties.h"

#include "kernels/reference.h"

namespace pitstop::kernels {
namespace {

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
    }
}

}  // namespace

void check(const PenaltyArgs& args) {
    CHECK(is_valid(args.logits));
    if (args.logits.rows == 0) return;
    CHECK(args.rows != nullptr && args.count_starts != nullptr && args.bias_starts != nullptr);
    CHECK(args.counts != nullptr || args.count_starts[args.logits.rows] == 0);
    CHECK(args.biases != nullptr || args.bias_starts[args.logits.rows] == 0);
}

void penalties_ref(const PenaltyArgs& args) { apply<double>(args); }

// A row has a few hundred scattered entries: one thread and no vectors.
void penalties_cpu(const PenaltyArgs& args) { apply<float>(args); }

}  // namespace pitstop::kernels
