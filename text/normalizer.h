// Normalizes text before it is split, by the normalizer of a tokenizer.json.
//
// Thread: any; immutable.
#pragma once

#include "base/result.h"
#include "text/normalization_form.h"
#include "text/regex.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

namespace pitstop::text {

// A stretch of the input text on its way through the pipeline.
struct Section {
    std::string text{};
    // True if the first character of `text` comes from the beginning of the input. Metaspace's
    // scheme "first" prepends only there.
    bool at_origin = false;
};

// The components have the names that tokenizer.json gives them.
struct LowercaseNormalizer {};
struct StripNormalizer {  // strips white space
    bool left = true;
    bool right = true;
};
struct StripAccentsNormalizer {};
struct NmtNormalizer {};  // drops control characters, turns unusual white space into spaces
struct PrependNormalizer {
    std::string text{};
};
struct ReplaceNormalizer {
    Regex pattern;
    std::string content{};
};
struct ByteLevelNormalizer {};  // turns every byte into its visible character (byte_alphabet.h)
using NormalizerStep = std::variant<
    NormalizationForm,
    LowercaseNormalizer,
    StripNormalizer,
    StripAccentsNormalizer,
    NmtNormalizer,
    PrependNormalizer,
    ReplaceNormalizer,
    ByteLevelNormalizer>;

// Applies the steps of a normalizer, in order.
// Bounded: a text may grow to bytes_max(), and no step starts with more. A file has at most
//          kStepsMax steps.
class Normalizer {
  public:
    // A bound is needed: a file can easily have a long sequence of replacements that double a text.
    static constexpr std::size_t kStepsMax = 64;
    // NFKD turns 3 bytes into 33. ByteLevel turns one into two.
    static constexpr std::size_t kGrowthMax = 32;
    static constexpr std::size_t kSmallBytes = 4096;  // the size to which any text may grow
    static constexpr std::size_t kBytesMax = std::size_t{64} << 20;
    [[nodiscard]] static std::size_t bytes_max(std::size_t text_bytes) {
        if (text_bytes >= kBytesMax) return text_bytes;  // the caller bounds such a text
        return std::min(std::max(text_bytes * kGrowthMax, kSmallBytes), kBytesMax);
    }

    Normalizer() = default;  // changes nothing
    explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

    // Returns the most bytes that the steps may read and write for a text of this size.
    [[nodiscard]] std::size_t work_max(std::size_t text_bytes) const;
    // REQUIRES: valid UTF-8. After an error the section is unspecified. Error: kTooLarge if the
    // text grows beyond bytes_max().
    Result<> apply(Section& section) const;

  private:
    std::vector<NormalizerStep> steps_{};  // a Sequence, flattened
};

}  // namespace pitstop::text
