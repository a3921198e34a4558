// A batch for attention: requests with keys and values outside of pages, and the rows that lay them
// out in pages.
#pragma once

#include "kernels/attention.h"
#include "tests/kernels/backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

namespace pitstop::kernels::test {

// An implementation of attention, and its room for scratch.
struct AttentionOp {
    void (*run)(const AttentionArgs&) = nullptr;
    std::int64_t (*workspace_bytes)(const AttentionShape&) = nullptr;
};
inline AttentionOp attention_of(const Ops& ops) {
    return {.run = ops.attention, .workspace_bytes = ops.attention_workspace_bytes};
}

struct Heads {
    std::int32_t Q;
    std::int32_t K;
    std::int32_t D;
};

// One request's queries, keys and values, outside of pages.
template <class T>
struct Request {
    std::int32_t len;
    Matrix<T> queries;  // [len, Q*D]
    Matrix<T> keys;     // [len, K*D]
    Matrix<T> values;   // [len, K*D]
};
template <class T>
Request<T> make_request(std::int32_t len, const Heads& heads, unsigned seed) {
    return {
        .len = len,
        .queries = random_matrix<T>(len, heads.Q * heads.D, seed),
        .keys = random_matrix<T>(len, heads.K * heads.D, seed + 1),
        .values = random_matrix<T>(len, heads.K * heads.D, seed + 2)};
}

// Describes a row: a request and the positions [begin, end) it computes now.
template <class T>
struct Span {
    const Request<T>* request;
    std::int32_t begin;
    std::int32_t end;
};

// The buffers that all calls of attention share, as a model's layers do.
struct Space {
    Space(std::int64_t bytes, Place place)
        : scratch(bytes, place),
          arrivals(std::vector<std::uint32_t>(AttentionArgs::kArrivals), place) {}

    Scratch scratch;
    PlacedArray<std::uint32_t> arrivals;
};

// A batch in host memory. KV is in pages in shuffled order, with NaN in every place that no token
// of the batch may read: past a row's end, and before its window.
template <class T>
struct Batch {
    Batch(
        std::vector<Span<T>> rows_in,
        const Heads& heads_in,
        std::int32_t page_size,
        std::int32_t window_in,
        unsigned seed
    )
        : rows(std::move(rows_in)), heads(heads_in), window(window_in) {
        std::int32_t num_pages = 1;
        for (const Span<T>& row : rows) num_pages += (row.end + page_size - 1) / page_size;
        kv = {
            .dtype = kDTypeOf<T>,
            .num_pages = num_pages,
            .page_size = page_size,
            .num_kv_heads = heads.K,
            .head_dim = heads.D};
        const T nan = from_double<T>(std::numeric_limits<double>::quiet_NaN());
        memory.resize(static_cast<std::size_t>(kv_bytes(kv)) / sizeof(T), nan);
        kv.data = memory.data();
        for (std::int32_t i = 0; i < num_pages; ++i) pages.push_back(PageId{i});
        std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
        std::int32_t num_tokens = 0;
        std::int32_t next_page = 0;
        for (const Span<T>& row : rows) {
            q_starts.push_back(num_tokens);
            kv_lens.push_back(row.end);
            page_starts.push_back(next_page);
            num_tokens += row.end - row.begin;
            const std::int32_t first = row.begin < window ? 0 : row.begin - window + 1;
            for (std::int32_t j = first; j < row.end; ++j) write(row, next_page, j);
            next_page += (row.end + page_size - 1) / page_size;
        }
        q_starts.push_back(num_tokens);
        queries = std::make_unique<Matrix<T>>(num_tokens, heads.Q * heads.D, 0x7f);
        std::int64_t t = 0;
        for (const Span<T>& row : rows) {
            for (std::int32_t p = row.begin; p < row.end; ++p, ++t) {
                for (std::int64_t c = 0; c < queries->num_cols(); ++c)
                    (*queries)(t, c) = row.request->queries(p, c);
            }
        }
    }

    void write(const Span<T>& row, std::int32_t first_page, std::int32_t j) {
        const PageId page = pages[static_cast<std::size_t>(first_page + j / kv.page_size)];
        for (std::int32_t h = 0; h < heads.K; ++h) {
            const std::int64_t key = key_offset(kv, page, h) + (j % kv.page_size) * heads.D;
            for (std::int32_t i = 0; i < heads.D; ++i) {
                memory[static_cast<std::size_t>(key + i)] = row.request->keys(j, h * heads.D + i);
                memory[static_cast<std::size_t>(key + value_offset(kv) + i)] =
                    row.request->values(j, h * heads.D + i);
            }
        }
    }

    AttentionArgs args(ActView out) const {
        return {
            .q = queries->view(),
            .out = out,
            .kv = kv,
            .num_q_heads = heads.Q,
            .num_rows = static_cast<std::int32_t>(rows.size()),
            .q_starts = q_starts.data(),
            .kv_lens = kv_lens.data(),
            .pages = pages.data(),
            .page_starts = page_starts.data(),
            .kv_len_max = kv_len_max(),
            .window = window,
            .scale = 1.f / std::sqrt(static_cast<float>(heads.D))};
    }

    std::int32_t kv_len_max() const { return *std::max_element(kv_lens.begin(), kv_lens.end()); }
    AttentionShape shape() const {
        return {
            .num_tokens = queries->num_rows(),
            .num_q_heads = heads.Q,
            .head_dim = heads.D,
            .kv_len_max = kv_len_max()};
    }

    // Returns the op's output, [T, Q*D]. Its workspace has `num_bytes`, or by default as many as
    // the op asks for.
    template <class Out = float>
    Matrix<Out> run(
        AttentionOp op,
        Place place,
        std::optional<std::int64_t> num_bytes = std::nullopt,
        std::int32_t q_len_max = 0
    ) const {
        const Space space(num_bytes.value_or(op.workspace_bytes(shape())), place);
        return run_in<Out>(space, op, place, q_len_max);
    }

    template <class Out = float>
    Matrix<Out> run_in(const Space& space, AttentionOp op, Place place, std::int32_t q_len_max = 0)
        const {
        Matrix<Out> out(queries->num_rows(), queries->num_cols(), 0x22);
        const PlacedMatrix<T> device_queries(*queries, place);
        const PlacedMatrix<Out> device_out(out, place);
        const PlacedArray<T> device_memory(memory, place);
        const PlacedArray<PageId> device_pages(pages, place);
        const PlacedArray<std::int32_t> device_q_starts(q_starts, place);
        const PlacedArray<std::int32_t> device_kv_lens(kv_lens, place);
        const PlacedArray<std::int32_t> device_page_starts(page_starts, place);
        AttentionArgs a = args(device_out.view());
        a.q = device_queries.view();
        a.kv.data = device_memory.data();
        a.pages = device_pages.data();
        a.q_starts = device_q_starts.data();
        a.kv_lens = device_kv_lens.data();
        a.page_starts = device_page_starts.data();
        a.q_len_max = q_len_max;
        a.workspace = space.scratch.workspace();
        a.arrivals = space.arrivals.data();
        a.stream = place.stream;
        op.run(a);
        device_out.fetch(out);
        return out;
    }

    std::vector<Span<T>> rows;
    Heads heads;
    std::int32_t window;
    KvCache kv{};
    std::vector<T> memory{};
    std::vector<PageId> pages{};
    std::vector<std::int32_t> q_starts{}, kv_lens{}, page_starts{};
    std::unique_ptr<Matrix<T>> queries{};
};

// Bounds an output's error without its rounding to its dtype. The errors of
//   a score        delta = |scale| * (linear's bound over D)
//   a probability  2 delta (its own and the sum's); exp's 2^-21 (on a GPU exp2's 2 ulp and the
//                  rounding of its argument); bf16's u if it is an operand of a pair or an mma
//   a sum of keys  on the CPU e per block, segment and key in it; on a GPU 2e per 16 keys and tile
//
// The output is an average of values, so these errors are multiplied by max |value|.
// The sum of magnitudes in a dot product of D normal numbers is below 6 sqrt(D) * sqrt(D) here.
template <class T>
double attention_bound(const Batch<T>& batch, bool is_gpu) {
    constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
    const double D = batch.heads.D;
    const double score_magnitude = 6.0 * D / std::sqrt(D);
    const double probability = kIsBf16 ? kEps16 : 0.0;
    const double max_value = 6.0;  // bound of some 10^5 normal numbers
    if (is_gpu) {
        const double chain = kIsBf16 ? D / 16.0 + 16.0 : D;
        const double delta = 2.0 * chain * kEps32 * score_magnitude;
        const double sums = (batch.kv_len_max() / 16.0 + 40.0) * 2.0 * kEps32;
        return max_value * (2.0 * delta + probability + 0x1p-20 + sums);
    }
    const double delta = 2.0 * (D / 16.0 + 9.0) * kEps32 * score_magnitude + D * 0x1p-126;
    const double sums = (256.0 + 64.0 + 16.0) * 2.0 * kEps32;
    return max_value * (2.0 * delta + probability + 0x1p-21 + sums);
}

template <class T, class Out>
void expect_reference(AttentionOp op, const Batch<T>& batch, Place place) {
    Matrix<Out> expected(batch.queries->num_rows(), batch.queries->num_cols(), 0x11);
    attention_ref(batch.args(expected.view()));
    const Matrix<Out> actual = batch.template run<Out>(op, place);
    const double bound = attention_bound(batch, place.is_gpu);
    const double rounding = place.is_gpu ? 2.02 * rounding_of(kDTypeOf<Out>) : 0.0;
    expect_within(actual, expected, [&](std::int64_t r, std::int64_t col) {
        return bound + rounding * std::abs(expected.value(r, col));
    });
}

// One batch with rows that begin, continue and decode.
template <class T, class Out>
void expect_reference(
    AttentionOp op, const Heads& heads, std::int32_t page_size, std::int32_t window, Place place
) {
    SCOPED_TRACE(
        testing::Message() << "Q " << heads.Q << " K " << heads.K << " D " << heads.D << " P "
                           << page_size << " window " << window << " size " << sizeof(T)
    );
    const Request<T> a = make_request<T>(page_size * 3 + 1, heads, 1);
    const Request<T> b = make_request<T>(140, heads, 10);
    const Request<T> c = make_request<T>(1, heads, 20);
    const Request<T> d = make_request<T>(520, heads, 30);
    const Batch<T> batch(
        {{&a, 0, a.len}, {&b, 65, 140}, {&c, 0, 1}, {&d, 519, 520}, {&d, 255, 258}, {&d, 63, 64}},
        heads,
        page_size,
        window,
        5
    );
    expect_reference<T, Out>(op, batch, place);
}

}  // namespace pitstop::kernels::test
