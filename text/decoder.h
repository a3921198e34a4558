// Decodes as a tokenizer.json says: makes text of token strings.
//
// It is a chain of stages, each of which hands on what can no longer change, so that decoding a
// stream token by token and decoding it at once are the same code. A stage that has to see all of
// its input (a Replace of a longer text behind a Fuse, say, which no known tokenizer has) holds it
// back until the end.
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

// These are the components by their names in tokenizer.json.
struct ByteLevelDecoder {
};  // characters of byte_alphabet.h back to bytes; a bad one keeps its token as it is
struct ByteFallbackDecoder {
};                      // <0xNN> to bytes; a run of them that is no UTF-8 becomes one U+FFFD each
struct FuseDecoder {};  // all tokens become one
struct StripDecoder {   // characters off both ends of every token
    std::string content{};  // one character
    std::size_t start = 0;  // at most so many
    std::size_t stop = 0;
};
struct ReplaceDecoder {
    Regex pattern;
    std::string content{};
    bool is_one_code_point =
        false;  // the pattern is a literal of one: no match spans two fragments
};
struct MetaspaceDecoder {  // `replacement` back to a space, and to nothing in the first token
    std::string replacement{};
    bool strips_first = true;  // the scheme is not "never"
};
struct BpeDecoder {  // the end-of-word suffix back to a space, but at the end
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
struct JoinDecoder {};  // no decoder at all: a space between tokens
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

    // Returns the bytes that a token stands for, where it stands for bytes.
    [[nodiscard]] std::optional<std::string> bytes_of(std::string_view token) const;

  private:
    std::vector<DecoderStep> steps_{};  // a Sequence, written flat
};

class Decoder::Stream {
  public:
    // REQUIRES: the decoder outlives the stream.
    explicit Stream(const Decoder& decoder);

    // Appends to `out` the text that is final once `token` is known.
    Result<> push(std::string_view token, std::string& out);
    // Appends `text` behind what is held back, as it is: it goes through no stage.
    Result<> push_as_is(std::string_view text, std::string& out);
    // Forgets a code point that is not complete, so that finish() gives what is whole.
    void drop_incomplete();
    // No more tokens come: appends the rest. Leaves the stream as new.
    Result<> finish(std::string& out);

  private:
    // Holds what one stage remembers. Before the first Fuse or ByteLevel a stage is given tokens,
    // behind it fragments of the one token that is left.
    struct Stage {
        bool is_fused = false;         // it is given fragments
        bool is_first = true;          // nothing came yet
        std::string held{};            // bytes of a run, the last token, or everything
        std::size_t num_stripped = 0;  // Strip: characters taken off the front
        std::size_t num_held = 0;      // Strip: characters of its kind at the end so far
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
