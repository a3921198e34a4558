// How positions rotate queries and keys: the frequencies of a checkpoint's rotary embedding, bit
// for bit those of transformers, and the factor of its cosines and sines.
//
// Source: transformers 5.23, modeling_rope_utils.py, for the keys and the arithmetic, which is fp32
//         there (torch_pow.h). YaRN: Peng et al. 2023 (arXiv:2309.00071).
#pragma once

#include "tp_worker/config/config_reader.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr double kRopeTheta = 10000.0;  // unless a configuration gives another

// The settings of a configuration, whose keys differ between families. A member that the type of
// scaling does not use keeps its default, so that configurations that compute the same compare
// equal.
struct RopeConfig {
    enum class Scaling : std::uint8_t {
        kNone,
        kLinear,  // frequencies divided by factor
        kLlama3,  // low frequencies divided by factor, high ones kept, with a ramp between
        kYarn,    // as kLlama3 with the ramp over dimensions; also scales cosines and sines
    };
    Scaling scaling = Scaling::kNone;
    double theta = kRopeTheta;
    double factor = 1.0;
    double low_freq_factor = 1.0;       // kLlama3
    double high_freq_factor = 4.0;      // kLlama3
    std::int64_t original_context = 0;  // kLlama3, kYarn: positions of the pretraining, tokens
    double beta_fast = 32.0;        // kYarn: frequencies with more turns over that context are kept
    double beta_slow = 1.0;         // kYarn: those with fewer turns are divided by factor
    bool truncate = true;           // kYarn: the ramp begins and ends at whole dimensions
    double attention_factor = 1.0;  // kYarn: of cosines and sines
    double rotary_factor = 1.0;     // the part of each head, its first elements, that is rotated

    bool operator==(const RopeConfig&) const = default;
};
[[nodiscard]] std::string_view name_of(RopeConfig::Scaling scaling);  // as rope_type: "yarn"

struct RopeDefaults {
    double theta = kRopeTheta;
    std::optional<double> rotary_factor{};  // empty: only whole heads are supported
};

// Reads the settings from a whole config.json, with `max_positions` its max_position_embeddings.
// Surprising values are reported in `notes`.
RopeConfig read_rope(
    ConfigReader& config,
    std::int64_t max_positions,
    ConfigProblems* problems,
    std::vector<std::string>* notes,
    const RopeDefaults& absent = {}
);

// Returns how many positions a model of `max_positions` serves with this scaling.
[[nodiscard]] std::int64_t scaled_context_len(const RopeConfig& rope, std::int64_t max_positions);

// Returns how many elements of a head are rotated. REQUIRES: read_rope() found no problem.
[[nodiscard]] std::int64_t rotary_len(const RopeConfig& rope, std::int64_t head_dim);

// Returns inv_freq[i], 0 <= i < rotary_len() / 2: radians per position of the i-th rotated pair.
[[nodiscard]] std::vector<float> rope_frequencies(const RopeConfig& rope, std::int64_t head_dim);

}  // namespace pitstop::tp_worker
