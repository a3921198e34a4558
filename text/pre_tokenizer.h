// Cuts normalized text into pieces, which the model encodes one by one, by the pre-tokenizer of a
// tokenizer.json. It may also change the text of a piece.
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

// The treatment of a split's matches ("delimiters"). The names are those of tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
    std::variant<Regex, CodePointSet> pattern;  // a set matches each of its code points separately
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;  // the delimiters are the texts between the matches
};
struct PrefixSpaceStep {};  // ByteLevel's add_prefix_space: every piece begins with a space
struct ByteLevelStep {};    // turns every byte into its visible character (byte_alphabet.h)
struct MetaspaceStep {      // turns spaces into `replacement`, and may prepend one
    enum class Prepend { kFirst, kNever, kAlways };
    std::string replacement{};  // of one character
    Prepend prepend = Prepend::kAlways;
};
struct FixedLengthStep {
    std::size_t length = 1;  // in code points
};
using PreTokenizerStep =
    std::variant<SplitStep, PrefixSpaceStep, ByteLevelStep, MetaspaceStep, FixedLengthStep>;

// The pieces of one section, as spans of one text.
struct Pieces {
    struct Piece {
        std::uint32_t begin = 0;
        std::uint32_t end = 0;  // > begin
        bool at_origin = false;
    };
    std::string text{};
    std::vector<Piece> pieces{};
    std::size_t bytes_max = 0;  // the limit for the text, which steps may make longer

    [[nodiscard]] std::string_view text_of(const Piece& piece) const {
        return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
    }
};

class PreTokenizer {
  public:
    // A Piece has 32-bit offsets.
    static constexpr std::size_t kTextBytesMax = std::size_t{1} << 31;

    PreTokenizer() = default;  // makes one piece
    explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

    // Returns whether the last step maps bytes to characters. That step is skipped: pieces contain
    // bytes, and the model treats each byte as its character. This halves the work.
    [[nodiscard]] bool yields_bytes() const { return yields_bytes_; }

    // REQUIRES: valid UTF-8, of at most kTextBytesMax bytes even after the steps made it longer.
    // `scratch` is another Pieces, whose memory is reused.
    Result<> apply(Section&& section, Pieces& pieces, Pieces& scratch) const;

  private:
    std::vector<PreTokenizerStep> steps_{};  // a Sequence, flattened
    bool yields_bytes_ = false;
};

}  // namespace pitstop::text
