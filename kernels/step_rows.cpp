#include "kernels/step_rows.h"

#include <limits>

namespace pitstop::kernels {

void check(const StepRowsArgs& args) {
    CHECK(args.update != nullptr && args.tables != nullptr);
    CHECK(args.num_rows >= 0 && args.page_size >= 1 && args.slot_pages >= 1 && args.num_slots >= 1);
    // page_starts has 32 bits; it indexes the tables, where padding's entries come last.
    CHECK(
        std::int64_t{args.num_slots} * args.slot_pages + args.num_rows <=
        std::numeric_limits<std::int32_t>::max()
    );
    if (args.num_rows == 0) return;
    CHECK(args.tokens != nullptr && args.positions != nullptr && args.kv_slots != nullptr);
    CHECK(args.kv_lens != nullptr && args.page_starts != nullptr);
}

void step_rows_ref(const StepRowsArgs& args) {
    check(args);
    const std::int32_t P = args.page_size;
    const StepUpdate update = StepUpdate::read(args.update);
    for (std::int32_t run = 0; run < update.num_runs; ++run) {
        const std::int32_t* const words =
            args.update + update.runs_at() + StepUpdate::kRunWords * run;
        for (std::int32_t i = 0; i < words[1]; ++i) {
            args.tables[std::int64_t{words[0]} + i] =
                static_cast<PageId>(args.update[update.pages_at() + words[2] + i]);
        }
    }
    for (std::int32_t r = 0; r < args.num_rows; ++r) {
        if (r >= update.num_rows) {
            const std::int32_t i = r - update.num_rows;
            args.tokens[r] = TokenId{-1};
            args.positions[r] = 0;
            args.page_starts[r] = args.num_slots * args.slot_pages + i / P;
            args.kv_lens[r] = 1;
            args.kv_slots[r] = std::int64_t{args.scratch_page} * P + i;
            continue;
        }
        if (update.num_given > 0) {
            args.tokens[r] = static_cast<TokenId>(args.update[update.tokens_at() + r]);
            args.positions[r] = args.update[update.positions_at() + r];
            args.page_starts[r] = args.update[update.slots_at() + r] * args.slot_pages;
        } else {
            ++args.positions[r];
        }
        const std::int32_t position = args.positions[r];
        const PageId page = args.tables[std::int64_t{args.page_starts[r]} + position / P];
        args.kv_lens[r] = position + 1;
        args.kv_slots[r] = std::int64_t{raw(page)} * P + position % P;
    }
}

}  // namespace pitstop::kernels
