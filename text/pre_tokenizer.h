// Cuts normalized text into the pieces that the model encodes one by one, and may change their
// text, by the pre-tokenizer of a tokenizer.json.
//
// Thread: any; immutable.
#pragma once

#include "base/result.h"
#include "text/normalizer.h"
#include "text/regex.h"
#include "text/unicode.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace pitstop::text {

// What a split does with its matches ("delimiters"), by tokenizer.json's names.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
    std::variant<Regex, CodePointSet> pattern;  // a set matches each of its code points separately
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;  // the text between the matches is the delimiter
};
struct PrefixSpaceStep {};  // ByteLevel's add_prefix_space: every piece begins with a space
struct ByteLevelStep {};    // every byte becomes its visible character (byte_alphabet.h)
struct MetaspaceStep {      // spaces become `replacement`, which may also be prepended
    enum class Prepend { kFirst, kNever, kAlways };
    std::string replacement{};  // one character
    Prepend prepend = Prepend::kAlways;
};
struct FixedLengthStep {
    std::size_t length = 1;  // in code points
};
using PreTokenizerStep =
    std::variant<SplitStep, PrefixSpaceStep, ByteLevelStep, MetaspaceStep, FixedLengthStep>;

// Holds the pieces of one section: spans of one text.
struct Pieces {
    struct Piece {
        std::uint32_t begin = 0;
        std::uint32_t end = 0;  // > begin
        bool at_origin = false;
    };
    std::string text{};
    std::vector<Piece> pieces{};
    std::size_t bytes_max = 0;  // limit for the text that the steps may grow

    [[nodiscard]] std::string_view text_of(const Piece& piece) const {
        return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
    }
};

class PreTokenizer {
  public:
    // a Piece has 32-bit offsets
    static constexpr std::size_t kTextBytesMax = std::size_t{1} << 31;

    PreTokenizer() = default;  // makes one piece
    explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

    // True if the last step maps bytes to characters. That step is skipped: pieces have bytes, and
    // the model treats each as its character. This saves half of the work.
    [[nodiscard]] bool yields_bytes() const { return yields_bytes_; }

    // REQUIRES: valid UTF-8, at most kTextBytesMax bytes even after the steps grew it. `scratch` is
    // another Pieces whose memory is reused.
    Result<> apply(Section&& section, Pieces& pieces, Pieces& scratch) const;

  private:
    std::vector<PreTokenizerStep> steps_{};  // a Sequence, flattened
    bool yields_bytes_ = false;
};

}  // namespace pitstop::text
