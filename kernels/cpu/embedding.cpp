#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"

namespace pitstop::kernels::PITSTOP_ISA {

void embedding(const EmbeddingArgs& args) {
    check(args);
    const std::int64_t H = args.y.cols;
    auto rows = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
            float* const y = args.y.data + t * args.y.stride;
            const std::int64_t table_row =
                static_cast<std::int64_t>(id_of(args.ids[t], args.sampled)) - args.vocab_begin;
            if (table_row < 0 || table_row >= args.table.rows) {
                for (std::int64_t i = 0; i < H; i += kLanes) store_up_to(y + i, zero(), H - i);
                continue;
            }
            const bf16* const x = args.table.data + table_row * args.table.stride;
            for (std::int64_t i = 0; i < H; i += kLanes)
                store_up_to(y + i, load_up_to(x + i, H - i), H - i);
        }
    };
    for_ranges(args.stream, args.y.rows, grain_of_bytes(H * 6), rows);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
