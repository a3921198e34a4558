// Updates words on the device that have changed: a call has the new values and their places.
//
// An update is one array of 32-bit words: a WordUpdate; runs of {at, length, first}; values.
//   words[at + i] = values[first + i], 0 <= i < length, for each run; no two overlap
//
//   update  [num_words()]  int32
//   words   [N]            int32
//
// Exact.
#pragma once

#include "kernels/tensor.h"

#include <cstdint>

namespace pitstop::kernels {

// The head of an update.
struct WordUpdate {
    static constexpr std::int64_t kWords = 2;
    static constexpr std::int64_t kRunWords = 3;

    std::int32_t num_runs = 0;
    std::int32_t num_values = 0;

    [[nodiscard]] static constexpr WordUpdate read(const std::int32_t* words) {
        return {words[0], words[1]};
    }
    [[nodiscard]] constexpr std::int64_t values_at() const { return kWords + kRunWords * num_runs; }
    [[nodiscard]] constexpr std::int64_t num_words() const { return values_at() + num_values; }
};

struct WordRunsArgs {
    const std::int32_t* update = nullptr;
    std::int32_t* words = nullptr;
    Stream stream{};
};

void check(const WordRunsArgs& args);
void word_runs_ref(const WordRunsArgs& args);
// For GPUs only, and not in the tables of ops: on a CPU the ops read their inputs on the host.
void word_runs_cuda(const WordRunsArgs& args);

}  // namespace pitstop::kernels
