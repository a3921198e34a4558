#include "kernels/expert_rows.h"

#include "kernels/reference.h"
#include "kernels/router.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace pitstop::kernels {

void check(const SortRowsByExpertArgs& args) {
    CHECK(args.num_experts >= 1 && args.num_experts <= RouteArgs::kExpertsMax);
    CHECK(args.chosen.cols >= 1 && args.chosen.cols <= RouteArgs::kChosenMax);
    CHECK(args.row_of.rows == args.chosen.rows && args.row_of.cols == args.chosen.cols);
    CHECK(args.begins != nullptr && (args.token_of != nullptr || args.chosen.rows == 0));
}

// Two passes over the pairs: exact, with a load and a store per pair. The CPU ops use this
// function, too.
void sort_rows_by_expert_ref(const SortRowsByExpertArgs& args) {
    check(args);
    std::array<std::int32_t, RouteArgs::kExpertsMax> next{};
    const std::int64_t T = args.chosen.rows;
    const std::int64_t k = args.chosen.cols;
    const auto local = [&](std::int64_t t, std::int64_t j) {
        const std::int32_t expert =
            args.chosen.data[t * args.chosen.stride + j] - args.first_expert;
        return expert >= 0 && expert < args.num_experts ? expert : -1;
    };
    std::ranges::fill(std::span(args.begins, static_cast<std::size_t>(args.num_experts) + 1), 0);
    for (std::int64_t t = 0; t < T; ++t) {
        for (std::int64_t j = 0; j < k; ++j) {
            if (const std::int32_t expert = local(t, j); expert >= 0) ++args.begins[expert + 1];
        }
    }
    for (std::int32_t e = 0; e < args.num_experts; ++e) {
        next[static_cast<std::size_t>(e)] = args.begins[e];
        args.begins[e + 1] += args.begins[e];
    }
    for (std::int64_t t = 0; t < T; ++t) {
        for (std::int64_t j = 0; j < k; ++j) {
            const std::int32_t expert = local(t, j);
            const std::int32_t row = expert < 0 ? -1 : next[static_cast<std::size_t>(expert)]++;
            args.row_of.data[t * args.row_of.stride + j] = row;
            if (row >= 0) args.token_of[row] = static_cast<std::int32_t>(t);
        }
    }
    for (std::int64_t row = args.begins[args.num_experts]; row < T * k; ++row)
        args.token_of[row] = 0;
}

void check(const SumExpertRowsArgs& args) {
    const std::int64_t T = args.y.rows;
    CHECK(is_valid(ConstActView(args.rows)) && is_valid(ConstActView(args.y)));
    CHECK(args.rows.cols == args.y.cols);
    CHECK(args.row_of.rows == T && args.weights.rows == T && args.row_of.cols == args.weights.cols);
    CHECK(
        args.shared.data == nullptr || (args.shared.rows == T && args.shared.cols == args.y.cols)
    );
    CHECK(args.shared.data == nullptr || (args.gate.rows == T && args.gate.cols == 1));
}

void sum_expert_rows_ref(const SumExpertRowsArgs& args) {
    check(args);
    for (std::int64_t t = 0; t < args.y.rows; ++t) {
        for (std::int64_t h = 0; h < args.y.cols; ++h) {
            double sum = 0.0;
            for (std::int64_t j = 0; j < args.row_of.cols; ++j) {
                const std::int32_t row = args.row_of.data[t * args.row_of.stride + j];
                if (row < 0) continue;
                sum += double{args.weights.data[t * args.weights.stride + j]} *
                       double{args.rows.data[row * args.rows.stride + h]};
            }
            if (args.shared.data != nullptr) {
                const double gate = double{args.gate.data[t * args.gate.stride]};
                sum +=
                    double{args.shared.data[t * args.shared.stride + h]} / (1.0 + std::exp(-gate));
            }
            args.y.data[t * args.y.stride + h] = static_cast<float>(sum);
        }
    }
}

}  // namespace pitstop::kernels
