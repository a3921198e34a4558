#include "kernels/word_runs.h"

namespace pitstop::kernels {

void check(const WordRunsArgs& args) { CHECK(args.update != nullptr && args.words != nullptr); }

void word_runs_ref(const WordRunsArgs& args) {
    check(args);
    const WordUpdate update = WordUpdate::read(args.update);
    for (std::int32_t run = 0; run < update.num_runs; ++run) {
        const std::int32_t* const of =
            args.update + WordUpdate::kWords + WordUpdate::kRunWords * run;
        for (std::int32_t i = 0; i < of[1]; ++i)
            args.words[std::int64_t{of[0]} + i] = args.update[update.values_at() + of[2] + i];
    }
}

}  // namespace pitstop::kernels
