#include "tp_worker/config/rope_config.h"

#include "tp_worker/config/torch_pow.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::json;
using Scaling = RopeConfig::Scaling;

constexpr std::int64_t kOriginalContextMax = std::int64_t{1} << 24;

constexpr std::array<std::pair<std::string_view, Scaling>, 4> kTypes{{
    {"default", Scaling::kNone},
    {"linear", Scaling::kLinear},
    {"llama3", Scaling::kLlama3},
    {"yarn", Scaling::kYarn},
}};

// The two objects that a config.json may have. If both exist, transformers uses only rope_scaling,
// and ignores rope_parameters entirely.
struct Settings {
    const char* key = nullptr;
    const Json* object = nullptr;  // null if there is none
};

Settings find_settings(ConfigReader& config) {
    Settings found;
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
        const Json* value = config.find_value(key);
        if (value == nullptr) continue;
        if (!value->is_object()) {
            config.malformed("{} must be an object, not {}", key, ConfigReader::shown(*value));
            continue;
        }
        if (!value->empty()) found = {key, value};
    }
    return found;
}

std::int64_t read_original_context(
    ConfigReader& config, ConfigReader& settings, std::int64_t max_positions
) {
    constexpr const char* kKey = "original_max_position_embeddings";
    // A value next to the object has precedence over the one inside.
    ConfigReader& reader = config.find(kKey) != nullptr ? config : settings;
    return reader.whole(kKey, max_positions, kOriginalContextMax);
}

void read_llama3(ConfigReader& settings, RopeConfig* rope) {
    rope->factor = settings.positive("factor", std::nullopt);
    rope->low_freq_factor = settings.positive("low_freq_factor", std::nullopt);
    rope->high_freq_factor = settings.positive("high_freq_factor", std::nullopt);
    if (rope->high_freq_factor <= rope->low_freq_factor)
        settings.malformed("high_freq_factor must exceed low_freq_factor");
}

// Computes 0.1 m ln(s) + 1: section 3.4 of the paper, with DeepSeek's m.
double mscale_of(double factor, double m) {
    return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

// Reads an optional number, which may be absent, null, or 0 where transformers treats 0 as absent.
double positive_or(ConfigReader& settings, const char* key, double otherwise) {
    if (settings.find_value(key) == nullptr) return otherwise;
    const double value = settings.not_negative(key, otherwise);
    return value == 0.0 ? otherwise : value;
}

void read_yarn(ConfigReader& settings, std::int64_t max_positions, RopeConfig* rope) {
    const Json* factor = settings.find("factor");
    // A null, unlike an absent key, means the ratio of the two lengths.
    rope->factor =
        factor != nullptr && factor->is_null()
            ? static_cast<double>(max_positions) / static_cast<double>(rope->original_context)
            : settings.positive("factor", std::nullopt);
    rope->beta_fast = positive_or(settings, "beta_fast", 32.0);
    rope->beta_slow = positive_or(settings, "beta_slow", 1.0);
    const Json* truncate = settings.find("truncate");
    rope->truncate =
        truncate != nullptr && truncate->is_null() ? false : settings.flag("truncate", true);
    if (rope->theta == 1.0) settings.malformed("rope_theta 1: yarn divides by its logarithm");

    if (settings.find_value("attention_factor") != nullptr) {
        rope->attention_factor = settings.positive("attention_factor", 1.0);
        return;
    }
    const double mscale = positive_or(settings, "mscale", 0.0);
    const double mscale_all = positive_or(settings, "mscale_all_dim", 0.0);
    rope->attention_factor =
        mscale > 0.0 && mscale_all > 0.0
            ? mscale_of(rope->factor, mscale) / mscale_of(rope->factor, mscale_all)
            : mscale_of(rope->factor, 1.0);
}

void read_theta(ConfigReader& config, ConfigReader* settings, RopeConfig* rope) {
    const bool is_inside = settings != nullptr && settings->find("rope_theta") != nullptr;
    ConfigReader& reader = is_inside ? *settings : config;
    rope->theta = reader.positive("rope_theta", rope->theta);
}

// A family that rotates whole heads accepts only a factor of 1. If the factor is outside the
// settings' object, refuse_unsupported() refuses it.
void read_rotary_factor(ConfigReader& reader, const RopeDefaults& absent, RopeConfig* rope) {
    constexpr const char* kKey = "partial_rotary_factor";
    const Json* const part = reader.find(kKey);
    if (part == nullptr) return;
    if (!absent.rotary_factor) {
        if (*part != 1.0)
            reader.unsupported("{} {} is not supported", kKey, ConfigReader::shown(*part));
        return;
    }
    rope->rotary_factor = reader.positive(kKey, std::nullopt);
    if (rope->rotary_factor > 1.0) {
        reader.malformed("{} must be at most 1, not {}", kKey, ConfigReader::shown(*part));
        rope->rotary_factor = 1.0;
    }
}

// Notes a configuration with both objects in which the object that transformers uses has no theta.
// The result in transformers is then most likely not intended.
void note_replaced(ConfigReader& config, const RopeConfig& rope, std::vector<std::string>* notes) {
    const Json* replaced = config.find_value("rope_parameters");
    if (replaced == nullptr || !replaced->is_object()) return;
    std::string note = fmt::format(
        "rope_scaling is given with rope_parameters and replaces it, as in transformers: "
        "rope_theta is {}",
        rope.theta
    );
    const auto theta = replaced->find("rope_theta");
    if (theta != replaced->end() && *theta != rope.theta) {
        note += fmt::format(
            ", not the {} of rope_parameters; set it in rope_scaling, too, if that is intended",
            ConfigReader::shown(*theta)
        );
    }
    notes->push_back(std::move(note));
}

}  // namespace

std::string_view name_of(Scaling scaling) {
    return kTypes[static_cast<std::size_t>(scaling)].first;
}

RopeConfig read_rope(
    ConfigReader& config,
    std::int64_t max_positions,
    ConfigProblems* problems,
    std::vector<std::string>* notes,
    const RopeDefaults& absent
) {
    RopeConfig rope{.theta = absent.theta};
    const Settings found = find_settings(config);
    if (absent.rotary_factor) {
        rope.rotary_factor = *absent.rotary_factor;
        read_rotary_factor(config, absent, &rope);
    }
    if (found.object == nullptr) {
        read_theta(config, nullptr, &rope);
        return rope;
    }
    if (std::any_of(found.object->begin(), found.object->end(), [](const Json& value) {
            return value.is_object();
        })) {
        config.unsupported("{} that differ between layers are not supported", found.key);
        return rope;
    }
    ConfigReader settings(*found.object, fmt::format("{}: ", found.key), problems);
    read_theta(config, &settings, &rope);
    read_rotary_factor(settings, absent, &rope);
    // "type" is the older spelling. With neither key, transformers ignores the settings, too.
    const char* type_key = settings.find("rope_type") != nullptr ? "rope_type" : "type";
    const std::string type = settings.text(type_key, "default");
    const auto row =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) { return t.first == type; });
    if (row == kTypes.end()) {
        settings.unsupported(
            "{} '{}' is not supported; known are default, linear, llama3 and yarn", type_key, type
        );
        return rope;
    }
    rope.scaling = row->second;
    if (rope.scaling == Scaling::kLinear) rope.factor = settings.positive("factor", std::nullopt);
    if (rope.scaling == Scaling::kLlama3 || rope.scaling == Scaling::kYarn)
        rope.original_context = read_original_context(config, settings, max_positions);
    if (rope.scaling == Scaling::kLlama3) read_llama3(settings, &rope);
    if (rope.scaling == Scaling::kYarn) read_yarn(settings, max_positions, &rope);
    if (std::string_view(found.key) == "rope_scaling") note_replaced(config, rope, notes);
    return rope;
}

// Returns the context length that vLLM computes. SGLang also multiplies for linear scaling; for
// YaRN it keeps max_position_embeddings if the original length is given. transformers has no limit.
std::int64_t scaled_context_len(const RopeConfig& rope, std::int64_t max_positions) {
    if (rope.scaling != Scaling::kLinear && rope.scaling != Scaling::kYarn) return max_positions;
    const std::int64_t original =
        rope.scaling == Scaling::kYarn ? rope.original_context : max_positions;
    constexpr double kMax = 1e15;  // a plausible size; the caller bounds it
    const double scaled = std::min(static_cast<double>(original) * rope.factor, kMax);
    return std::max(max_positions, static_cast<std::int64_t>(scaled));
}

namespace {

// Computes theta^(2i / D). PyTorch's loop processes two vectors at a time, of 16 floats each with
// AVX-512, and the remainder one by one, with the C library's powf.
std::vector<float> powers_of_theta(double theta, std::int64_t head_dim) {
    constexpr std::size_t kVectorLoop = 32;
    const auto base = static_cast<float>(theta);
    std::vector<float> powers(static_cast<std::size_t>(head_dim / 2));
    const std::size_t num_in_vectors = powers.size() / kVectorLoop * kVectorLoop;
    for (std::size_t i = 0; i < powers.size(); ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
        powers[i] = i < num_in_vectors ? torch_powf(base, exponent) : std::pow(base, exponent);
    }
    return powers;
}

// Scales a frequency by the number of its wavelengths that fit into the pretraining's context, as
// in Llama 3.1's reference code.
float llama3_frequency(const RopeConfig& rope, float frequency) {
    const auto context = static_cast<double>(rope.original_context);
    const auto factor = static_cast<float>(rope.factor);
    const auto low = static_cast<float>(rope.low_freq_factor);
    const auto range = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
    const float wavelength = 1.f / frequency * static_cast<float>(2.0 * std::numbers::pi);
    if (wavelength > static_cast<float>(context / rope.low_freq_factor)) return frequency / factor;
    if (wavelength < static_cast<float>(context / rope.high_freq_factor)) return frequency;
    const float kept = (1.f / wavelength * static_cast<float>(context) - low) / range;
    return (1.f - kept) * frequency / factor + kept * frequency;
}

// High frequencies are kept and low ones divided. Between them is a linear ramp, for frequencies
// that turn between beta_fast and beta_slow times over the pretraining's context.
std::vector<float> yarn_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
    const auto dim = static_cast<double>(head_dim);
    const auto dimension_of = [&](double turns) {
        const double waves =
            static_cast<double>(rope.original_context) / (turns * 2.0 * std::numbers::pi);
        return dim * std::log(waves) / (2.0 * std::log(rope.theta));
    };
    double begin = dimension_of(rope.beta_fast);
    double end = dimension_of(rope.beta_slow);
    if (rope.truncate) {
        begin = std::floor(begin);
        end = std::ceil(end);
    }
    begin = std::max(begin, 0.0);
    end = std::min(end, dim - 1.0);
    if (begin == end) end += 0.001;

    const auto factor = static_cast<float>(rope.factor);
    std::vector<float> frequencies = powers_of_theta(rope.theta, head_dim);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const float power = frequencies[i];
        const float place =
            (static_cast<float>(i) - static_cast<float>(begin)) / static_cast<float>(end - begin);
        const float kept = 1.f - std::clamp(place, 0.f, 1.f);
        frequencies[i] = 1.f / (factor * power) * (1.f - kept) + 1.f / power * kept;
    }
    return frequencies;
}

}  // namespace

std::int64_t rotary_len(const RopeConfig& rope, std::int64_t head_dim) {
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rope.rotary_factor);
}

std::vector<float> rope_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
    const std::int64_t len = rotary_len(rope, head_dim);
    if (rope.scaling == Scaling::kYarn) return yarn_frequencies(rope, len);
    std::vector<float> frequencies = powers_of_theta(rope.theta, len);
    for (float& frequency : frequencies) {
        frequency = 1.f / frequency;
        if (rope.scaling == Scaling::kLinear) frequency /= static_cast<float>(rope.factor);
        if (rope.scaling == Scaling::kLlama3) frequency = llama3_frequency(rope, frequency);
    }
    return frequencies;
}

}  // namespace pitstop::tp_worker
