// The normalizer of a tokenizer.json: what is done to text before it is split.
//
// Thread: any; immutable.
#pragma once

#include "base/result.h"
#include "text/normalization_form.h"
#include "text/regex.h"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pitstop {

// A stretch of the input under way through the pipeline.
struct Section {
    std::string text{};
    // Whether its first character comes from the very beginning of the input: Metaspace's scheme
    // "first" prepends only there.
    bool at_origin = false;
};

// The components by their names in tokenizer.json.
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

class Normalizer {
  public:
    Normalizer() = default;  // changes nothing
    explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

    [[nodiscard]] bool is_identity() const { return steps_.empty(); }
    // REQUIRES: valid UTF-8. On an Error the section is unspecified.
    Result<> apply(Section& section) const;

  private:
    std::vector<NormalizerStep> steps_{};  // a Sequence, written flat
};

}  // namespace pitstop
