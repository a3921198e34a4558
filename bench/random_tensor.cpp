#include "bench/random_tensor.h"

#include "base/bf16.h"
#include "base/check.h"
#include "base/digest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace pitstop::bench {
namespace {

constexpr std::size_t kNumQuantiles = 65536;
constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;
constexpr int kPerWord = 4;  // elements from one hash

// Inverts the normal distribution function, for p in (0, 1/2].
// Source: Abramowitz and Stegun 26.2.23, |error| < 4.5e-4: far below the resolution of bf16 at the
// spread of a weight.
double lower_quantile(double p) {
    const double t = std::sqrt(-2.0 * std::log(p));
    const double above = 2.515517 + t * (0.802853 + t * 0.010328);
    const double below = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    return above / below - t;
}

// The table is [65536], ascending and antisymmetric: the mean is exactly zero.
const std::vector<float>& quantiles() {
    static const std::vector<float> table = [] {
        std::vector<float> made(kNumQuantiles);
        for (std::size_t i = 0; i < kNumQuantiles / 2; ++i) {
            const double p = (static_cast<double>(i) + 0.5) / static_cast<double>(kNumQuantiles);
            made[i] = static_cast<float>(lower_quantile(p));
            made[kNumQuantiles - 1 - i] = -made[i];
        }
        return made;
    }();
    return table;
}

// Rounds to nearest, ties to even. REQUIRES: |x| < 65504: a weight.
std::uint16_t f16_bits(float x) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const float magnitude = std::fabs(x);
    if (magnitude < 0x1p-14f) {  // a denormal: a multiple of 2^-24
        return static_cast<std::uint16_t>(
            sign | static_cast<std::uint32_t>(std::lrint(magnitude * 0x1p24f))
        );
    }
    const std::uint32_t m = u & 0x7fffffffu;
    const std::uint32_t rounded = m + 0xfffu + ((m >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

template <class Stored>
Stored encode(WeightDtype dtype, double value) {
    const float x = static_cast<float>(value);
    if constexpr (std::is_same_v<Stored, float>) {
        return x;
    } else {
        return dtype == WeightDtype::kBf16 ? to_bf16(x).bits : f16_bits(x);
    }
}

std::uint64_t key_of(std::string_view name, std::uint64_t seed) {
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return mix64(hash ^ mix64(seed + kSplitMixStep));
}

std::uint64_t word_of(std::uint64_t key, std::uint64_t index) {
    return mix64(key + (index + 1) * kSplitMixStep);
}

struct DtypeNames {
    std::string_view flag;
    std::string_view stored;
    std::string_view torch;
    std::int64_t bytes;
};
constexpr std::array<DtypeNames, 3> kDtypes{{
    {"bf16", "BF16", "bfloat16", 2},
    {"f16", "F16", "float16", 2},
    {"f32", "F32", "float32", 4},
}};

}  // namespace

Result<WeightDtype> parse_dtype(std::string_view name) {
    for (std::size_t i = 0; i < kDtypes.size(); ++i) {
        if (kDtypes[i].flag == name) return static_cast<WeightDtype>(i);
    }
    return make_error(ErrorCode::kInvalidArgument, "dtype '{}' is not one of bf16, f16, f32", name);
}

std::string_view stored_name_of(WeightDtype dtype) {
    return kDtypes[static_cast<std::size_t>(dtype)].stored;
}
std::string_view torch_name_of(WeightDtype dtype) {
    return kDtypes[static_cast<std::size_t>(dtype)].torch;
}
std::int64_t bytes_of(WeightDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bytes; }

RandomTensor::RandomTensor(const Args& args)
    : key_(key_of(args.name, args.seed)), mean_(args.mean), std_(args.std), dtype_(args.dtype) {
    if (args.perturbation) {
        perturbation_key_ = key_of(args.name, ~args.perturbation->seed);
        perturbation_std_ = args.perturbation->scale * (std_ > 0 ? std_ : std::fabs(mean_));
    }
    const auto fill_table = [&]<class Stored>(std::vector<Stored>& table) {
        table.resize(kNumQuantiles);
        std::transform(quantiles().begin(), quantiles().end(), table.begin(), [&](float z) {
            return encode<Stored>(dtype_, mean_ + std_ * static_cast<double>(z));
        });
    };
    if (dtype_ == WeightDtype::kF32) {
        fill_table(table32_);
    } else {
        fill_table(table16_);
    }
}

template <class Stored>
void RandomTensor::fill_stored(
    std::int64_t begin, std::span<Stored> out, const std::vector<Stored>& table
) const {
    const std::vector<float>& z = quantiles();
    std::uint64_t index = static_cast<std::uint64_t>(begin) / kPerWord;
    for (std::size_t i = 0; i < out.size(); i += kPerWord, ++index) {
        const std::uint64_t word = word_of(key_, index);
        const std::size_t n = std::min<std::size_t>(kPerWord, out.size() - i);
        if (perturbation_std_ == 0) {
            for (std::size_t k = 0; k < n; ++k) out[i + k] = table[(word >> (16 * k)) & 0xffffu];
            continue;
        }
        const std::uint64_t other = word_of(perturbation_key_, index);
        for (std::size_t k = 0; k < n; ++k) {
            const double own = static_cast<double>(z[(word >> (16 * k)) & 0xffffu]);
            const double moved = static_cast<double>(z[(other >> (16 * k)) & 0xffffu]);
            out[i + k] = encode<Stored>(dtype_, mean_ + std_ * own + perturbation_std_ * moved);
        }
    }
}

void RandomTensor::fill(std::int64_t begin, std::span<std::byte> out) const {
    CHECK(begin % kPerWord == 0);
    const std::size_t count = out.size() / static_cast<std::size_t>(bytes_of(dtype_));
    if (dtype_ == WeightDtype::kF32) {
        fill_stored<float>(begin, {reinterpret_cast<float*>(out.data()), count}, table32_);
    } else {
        auto* const stored = reinterpret_cast<std::uint16_t*>(out.data());
        fill_stored<std::uint16_t>(begin, {stored, count}, table16_);
    }
}

}  // namespace pitstop::bench
