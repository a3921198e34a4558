// Turns token strings into text, by the decoder of a tokenizer.json.
//
// A decoder is a chain of stages. Each passes on text as soon as the text is final. So the same
// code decodes a stream token by token, and all tokens at once. A stage that needs all its input
// withholds it until the end. An example is a Replace of several characters after a Fuse, but no
// known tokenizer has one.
//
// Thread: any; a Decoder is immutable. A Stream belongs to one thread.
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

// The components have the names that tokenizer.json gives them.
struct ByteLevelDecoder {
};  // turns characters of byte_alphabet.h back into bytes; a token with another character is kept
struct ByteFallbackDecoder {
};                      // turns <0xNN> into bytes; in a run that is not UTF-8 each becomes U+FFFD
struct FuseDecoder {};  // joins all tokens into one
struct StripDecoder {   // strips characters from both ends of every token
    std::string content{};  // the character that is stripped
    std::size_t start = 0;  // the most that are stripped from the front
    std::size_t stop = 0;
};
struct ReplaceDecoder {
    Regex pattern;
    std::string content{};
    bool is_one_code_point =
        false;  // the pattern is a literal of one character: no match spans two fragments
};
// Turns `replacement` back into a space, and in the first token into nothing.
struct MetaspaceDecoder {
    std::string replacement{};
    bool strips_first = true;  // false with the scheme "never"
};
struct BpeDecoder {  // turns the suffix of words back into a space, and at the end into nothing
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
struct JoinDecoder {};  // for a file without a decoder: joins tokens with spaces
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

    // Returns the bytes that a token represents, if it represents bytes.
    [[nodiscard]] std::optional<std::string> bytes_of(std::string_view token) const;

  private:
    std::vector<DecoderStep> steps_{};  // a Sequence, flattened
};

class Decoder::Stream {
  public:
    // REQUIRES: the decoder outlives the stream.
    explicit Stream(const Decoder& decoder);

    // Appends to `out` the text that has become final with `token`.
    Result<> push(std::string_view token, std::string& out);
    // Appends the withheld text, and then `text`, which passes through no stage.
    Result<> push_as_is(std::string_view text, std::string& out);
    // Drops an incomplete code point, so that finish() appends only complete ones.
    void drop_incomplete();
    // Ends the input: appends the withheld text. Resets the stream.
    Result<> finish(std::string& out);

  private:
    // The state of a stage. Stages up to the first Fuse or ByteLevel receive tokens. Later stages
    // receive fragments of the one token that the Fuse or ByteLevel makes.
    struct Stage {
        bool is_fused = false;         // the stage receives fragments
        bool is_first = true;          // no input has arrived
        std::string held{};            // the bytes of a run, the last token, or all input
        std::size_t num_stripped = 0;  // Strip: the characters that were stripped from the front
        std::size_t num_held = 0;      // Strip: the withheld characters, stripped at a token's end
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
