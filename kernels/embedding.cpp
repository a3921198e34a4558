#include "kernels/embedding.h"

#include "kernels/reference.h"

namespace pitstop::kernels {

void check(const EmbeddingArgs& args) {
    CHECK(is_valid(args.y));
    CHECK(is_valid(args.table));
    CHECK(args.table.cols == args.y.cols);
    CHECK(args.ids != nullptr || args.y.rows == 0);
}

void embedding_ref(const EmbeddingArgs& args) {
    check(args);
    for (std::int64_t t = 0; t < args.y.rows; ++t) {
        const TokenId id = id_of(args.ids[t], args.sampled);
        const std::int64_t table_row = std::int64_t{raw(id)} - args.vocab_begin;
        const bool is_here = table_row >= 0 && table_row < args.table.rows;
        for (std::int64_t i = 0; i < args.y.cols; ++i) {
            row(args.y, t)[static_cast<std::size_t>(i)] =
                is_here ? to_float(args.table.data[table_row * args.table.stride + i]) : 0.f;
        }
    }
}

}  // namespace pitstop::kernels
