// Turns token strings into text, by the decoder of a tokenizer.json.
//
// A chain of stages. Each passes on text as soon as it is final, so that the same code decodes a
// stream token by token and all tokens at once. A stage that must see all its input holds it
// back until the end (for example a Replace of a longer text after a Fuse, which no known
// tokenizer has).
//
// Thread: any; a Decoder is immutable, a Stream belongs to one thread.
#pragma once

#include "base/result.h"
#include "text/regex.h"
#include "text/utf8.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pitstop::text {

// The components, by their names in tokenizer.json.
struct ByteLevelDecoder {
};  // turns characters of byte_alphabet.h back into bytes; a bad one keeps its token unchanged
struct ByteFallbackDecoder {
};                      // turns <0xNN> into bytes; in a run that is not UTF-8 each becomes a U+FFFD
struct FuseDecoder {};  // joins all tokens into one
struct StripDecoder {   // strips characters from both ends of every token
    std::string content{};  // one character
    std::size_t start = 0;  // at most this many are stripped
    std::size_t stop = 0;
};
struct ReplaceDecoder {
    Regex pattern;
    std::string content{};
    bool is_one_code_point =
        false;  // the pattern is a literal of one character: no match spans two fragments
};
// turns `replacement` back into a space, and into nothing in the first token
struct MetaspaceDecoder {
    std::string replacement{};
    bool strips_first = true;  // the scheme is not "never"
};
struct BpeDecoder {  // turns the end-of-word suffix back into a space, except at the end
    std::string suffix{};
};
struct WordPieceDecoder {
    std::string prefix{};
    bool cleanup = false;
};
struct CtcDecoder {
    std::string pad_token{};
    std::string word_delimiter_token{};
    bool cleanup = false;
};
struct JoinDecoder {};  // no decoder at all: joins tokens with spaces
using DecoderStep = std::variant<
    ByteLevelDecoder,
    ByteFallbackDecoder,
    FuseDecoder,
    StripDecoder,
    ReplaceDecoder,
    MetaspaceDecoder,
    BpeDecoder,
    WordPieceDecoder,
    CtcDecoder,
    JoinDecoder>;

class Decoder {
  public:
    Decoder() { steps_.emplace_back(JoinDecoder{}); }
    explicit Decoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

    class Stream;

    // Returns a token's bytes, if the token represents bytes.
    [[nodiscard]] std::optional<std::string> bytes_of(std::string_view token) const;

  private:
    std::vector<DecoderStep> steps_{};  // a Sequence, flattened
};

class Decoder::Stream {
  public:
    // REQUIRES: the decoder outlives the stream.
    explicit Stream(const Decoder& decoder);

    // Appends to `out` the text that becomes final with `token`.
    Result<> push(std::string_view token, std::string& out);
    // Appends the held text and then `text`, which passes through no stage.
    Result<> push_as_is(std::string_view text, std::string& out);
    // Drops an incomplete code point, so that finish() returns only complete text.
    void drop_incomplete();
    // No more tokens follow: appends the rest. Resets the stream.
    Result<> finish(std::string& out);

  private:
    // The state of one stage. Stages up to the first Fuse or ByteLevel receive tokens; later ones
    // receive fragments of the one token that is left.
    struct Stage {
        bool is_fused = false;         // receives fragments
        bool is_first = true;          // no input yet
        std::string held{};            // a run's bytes, the last token, or all input
        std::size_t num_stripped = 0;  // Strip: characters stripped from the front
        std::size_t num_held = 0;      // Strip: characters to strip at the end so far
        LossyUtf8 utf8{};
    };
    Result<> feed(std::size_t stage, std::string_view piece, std::string& out);
    Result<> close(std::size_t stage, std::string& out);
    Result<> feed_token(std::size_t stage, std::string_view token, std::string& out);
    [[nodiscard]] bool must_collect(std::size_t stage) const;
    void reset();

    const Decoder* decoder_;  // a pointer, so that streams can be moved
    std::vector<Stage> stages_{};
};

}  // namespace pitstop::text
