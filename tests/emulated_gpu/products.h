// The settings of the emulated cuBLASLt (cublas_lt.cpp), and its record of products. Tests set
// and read them while nothing runs on the GPU.
#pragma once

#include <cstdint>
#include <vector>

namespace pitstop::emulator {

struct Products {
    // The time of a product by algorithm 0, 1, ... on the GPU's clock; the length is the number of
    // algorithms. Zeros do not change the clock.
    std::vector<double> ms{0.0, 0.0, 0.0};
    std::uint64_t cols_refused = 0;  // refused: products with this many columns of D ...
    std::vector<std::uint64_t> algorithms_that_refuse{};  // ... by these algorithms
    bool has_guesses = true;                              // false: the heuristic returns none
    int num_heuristics = 0;
    std::vector<std::uint64_t> used{};  // the algorithm of each product, in the order of the calls
};
[[nodiscard]] Products& products();

}  // namespace pitstop::emulator
