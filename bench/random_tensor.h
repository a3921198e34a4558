// Makes random weights at memory speed: element i of a tensor depends on the seed, the tensor's
// name and i alone, so that any thread may fill any part, in any order, and get the same bytes.
//
// 16 bits of a counter-based hash pick one of 65536 quantiles of the normal distribution; the
// largest is 4.3 standard deviations. The quantiles are encoded once per tensor. So an element
// costs a quarter of a hash and a look-up in the second-level cache. The hash is SplitMix64 at a
// counter (base/digest.h has its source).
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace pitstop::bench {

enum class WeightDtype { kBf16, kF16, kF32 };
[[nodiscard]] Result<WeightDtype> parse_dtype(std::string_view name);  // "bf16", "f16", "f32"
[[nodiscard]] std::string_view stored_name_of(WeightDtype dtype);      // "BF16": safetensors
[[nodiscard]] std::string_view torch_name_of(WeightDtype dtype);       // "bfloat16"
[[nodiscard]] std::int64_t bytes_of(WeightDtype dtype);                // of an element

// A small change, as of a training step: adds other random values times `scale` standard
// deviations. A constant tensor (a norm) changes by `scale` times its mean.
struct Perturbation {
    std::uint64_t seed = 0;
    double scale = 0;
};

class RandomTensor {
  public:
    struct Args {
        std::string_view name{};
        std::uint64_t seed = 0;
        double mean = 0;
        double std = 0;
        WeightDtype dtype = WeightDtype::kBf16;
        std::optional<Perturbation> perturbation{};
    };
    explicit RandomTensor(const Args& args);

    // Fills elements [begin, begin + out.size() / bytes_of(dtype)). REQUIRES: begin % 4 == 0; out
    // is aligned for the dtype and holds whole elements.
    void fill(std::int64_t begin, std::span<std::byte> out) const;

  private:
    template <class Stored>
    void fill_stored(std::int64_t begin, std::span<Stored> out, const std::vector<Stored>& table)
        const;

    std::uint64_t key_ = 0;
    std::uint64_t perturbation_key_ = 0;
    double mean_ = 0;
    double std_ = 0;
    double perturbation_std_ = 0;  // 0: none
    WeightDtype dtype_ = WeightDtype::kBf16;
    std::vector<std::uint16_t> table16_{};  // [65536], encoded; bf16 and f16
    std::vector<float> table32_{};          // [65536]; f32
};

}  // namespace pitstop::bench
