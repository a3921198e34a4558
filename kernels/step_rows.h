// Keeps the inputs of steps on the device, so that a step uploads only changes: the pages of every
// request, in a table of its slot, and the rows of the last step of decodes.
//
//   tables[slot * slot_pages + i]           page i of the request in the slot
//   tables[num_slots * slot_pages + i]      scratch page i, of rows that pad a step; never written
//
// An update is one array of 32-bit words: a StepUpdate; tokens, positions and slots of the given
// rows; runs of {at, length, first}; pages. Its effects, in this order:
//   tables[at + i] = pages[first + i], 0 <= i < length, for each run; no two overlap
//   row r < num_given:   tokens[r], positions[r] and page_starts[r] = slot * slot_pages as given
//   if none is given:    positions[r] += 1, the rest is unchanged, for r < num_rows
//   row r >= num_rows:   padding i = r - num_rows: token -1, position 0, page_starts[r] that of
//                        scratch page i / P, kv_slots[r] place i of the scratch pages
//   kv_lens[r] = positions[r] + 1; kv_slots[r] = page * P + positions[r] % P with the page of the
//   position in the row's table
//
//   update       [num_words()]  int32
//   tokens, positions, kv_lens, page_starts  [R] int32; kv_slots [R] int64; with R = 0 none is
//                touched
//   tables       [num_slots * slot_pages + scratch pages]
//
// Exact.
#pragma once

#include "base/ids.h"
#include "kernels/tensor.h"

#include <cstdint>

namespace pitstop::kernels {

// The head of an update.
struct StepUpdate {
    static constexpr std::int64_t kWords = 4;
    static constexpr std::int64_t kRowWords = 3;
    static constexpr std::int64_t kRunWords = 3;

    std::int32_t num_rows = 0;   // without padding
    std::int32_t num_given = 0;  // num_rows, or 0: the rows continue
    std::int32_t num_runs = 0;
    std::int32_t num_pages = 0;

    [[nodiscard]] static constexpr StepUpdate read(const std::int32_t* words) {
        return {words[0], words[1], words[2], words[3]};
    }
    // Where the parts begin, in words.
    [[nodiscard]] constexpr std::int64_t tokens_at() const { return kWords; }
    [[nodiscard]] constexpr std::int64_t positions_at() const { return kWords + num_given; }
    [[nodiscard]] constexpr std::int64_t slots_at() const {
        return kWords + 2 * std::int64_t{num_given};
    }
    [[nodiscard]] constexpr std::int64_t runs_at() const { return kWords + kRowWords * num_given; }
    [[nodiscard]] constexpr std::int64_t pages_at() const {
        return runs_at() + kRunWords * num_runs;
    }
    [[nodiscard]] constexpr std::int64_t num_words() const { return pages_at() + num_pages; }
};

struct StepRowsArgs {
    const std::int32_t* update = nullptr;
    std::int32_t num_rows = 0;    // R, with padding; 0: only the tables are updated
    std::int32_t page_size = 0;   // P, tokens
    std::int32_t slot_pages = 0;  // entries of a slot
    std::int32_t num_slots = 0;
    std::int32_t scratch_page = 0;  // the first page that padding writes to
    TokenId* tokens = nullptr;
    std::int32_t* positions = nullptr;
    std::int64_t* kv_slots = nullptr;
    std::int32_t* kv_lens = nullptr;
    std::int32_t* page_starts = nullptr;
    PageId* tables = nullptr;
    Stream stream{};
};

void check(const StepRowsArgs& args);
void step_rows_ref(const StepRowsArgs& args);
// For GPUs only, and not in the tables of ops: on a CPU the steps' inputs are on the host.
void step_rows_cuda(const StepRowsArgs& args);

}  // namespace pitstop::kernels
