// How the stand-in for cuBLASLt behaves (cublas_lt.cpp), and what it was asked for. For tests,
// which set the one and read the other while nothing runs on the GPU.
#pragma once

#include <cstdint>
#include <vector>

namespace pitstop::emulator {

struct Products {
    // What a product by algorithm 0, 1, ... takes on the GPU's clock: how many there are. Zeros
    // leave the clock to itself.
    std::vector<double> ms{0.0, 0.0, 0.0};
    std::uint64_t cols_refused = 0;  // products of so many columns of D are not supported ...
    std::vector<std::uint64_t> algorithms_that_refuse{};  // ... by these
    bool has_guesses = true;                              // false: the heuristic has none
    int num_heuristics = 0;
    std::vector<std::uint64_t> used{};  // the algorithm of each product, in the order of the calls
};
[[nodiscard]] Products& products();

}  // namespace pitstop::emulator
