// Normalizes as a tokenizer.json says: this is done to text before it is split.
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

// Holds a stretch of the input under way through the pipeline.
struct Section {
    std::string text{};
    // Tells whether its first character comes from the very beginning of the input: Metaspace's
    // scheme "first" prepends only there.
    bool at_origin = false;
};

// These are the components by their names in tokenizer.json.
struct LowercaseNormalizer {};
struct StripNormalizer {  // white space
    bool left = true;
    bool right = true;
};
struct StripAccentsNormalizer {};
struct NmtNormalizer {};  // drops control characters, makes odd white space a space
struct PrependNormalizer {
    std::string text{};
};
struct ReplaceNormalizer {
    Regex pattern;
    std::string content{};
};
struct ByteLevelNormalizer {};  // every byte becomes its visible character (byte_alphabet.h)
using NormalizerStep = std::variant<
    NormalizationForm,
    LowercaseNormalizer,
    StripNormalizer,
    StripAccentsNormalizer,
    NmtNormalizer,
    PrependNormalizer,
    ReplaceNormalizer,
    ByteLevelNormalizer>;

//
// Bounded: a text may grow to bytes_max(), and no step starts on more; the file's reader takes at
//          most kStepsMax steps.
class Normalizer {
  public:
    // A sequence of replacements that double the text is short to write and has no end.
    static constexpr std::size_t kStepsMax = 64;
    // NFKD makes 33 bytes of 3, and ByteLevel two of one.
    static constexpr std::size_t kGrowthMax = 32;
    static constexpr std::size_t kSmallBytes = 4096;  // a short text may grow to this
    static constexpr std::size_t kBytesMax = std::size_t{64} << 20;
    [[nodiscard]] static std::size_t bytes_max(std::size_t text_bytes) {
        if (text_bytes >= kBytesMax) return text_bytes;  // whoever gave it bounds it
        return std::min(std::max(text_bytes * kGrowthMax, kSmallBytes), kBytesMax);
    }

    Normalizer() = default;  // changes nothing
    explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

    // Returns the bytes that its steps may read and write for a text of so many.
    [[nodiscard]] std::size_t work_max(std::size_t text_bytes) const;
    // REQUIRES: valid UTF-8. On an Error the section is unspecified. kTooLarge: it grows beyond
    // bytes_max().
    Result<> apply(Section& section) const;

  private:
    std::vector<NormalizerStep> steps_{};  // a Sequence, written flat
};

}  // namespace pitstop::text
