// Turns text into token ids and back, by a model's tokenizer.json. For BPE models, the ids are
// exactly those of the reference implementation (Hugging Face `tokenizers` 0.23).
//
// The path of a text: added tokens are split off (added_tokens.h); the text between them is
// normalized (normalizer.h) and cut into pieces (pre_tokenizer.h); each piece is encoded (bpe.h);
// special tokens are put around the ids (post_processor.h). decoder.h turns ids back into text.
//
// Thread:  any; immutable, except for a pool of scratch memory behind a mutex. Each call takes its
//          own scratch from the pool; the scratch has the encodings of recent pieces.
// Bounded: one scratch of about 2 MB for each of the most calls that ever ran at once. A scratch
//          grows with the longest text, and is dropped beyond kScratchBytesMax.
#pragma once

#include "base/ids.h"
#include "base/interrupt.h"
#include "base/result.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::text {

class Decoder;

enum class AddSpecial { kNo, kYes };   // what the post-processor puts around a text (<s>, ...)
enum class SkipSpecial { kNo, kYes };  // special tokens decode to nothing

class Tokenizer {
  public:
    static constexpr std::size_t kFileBytesMax = std::size_t{256} << 20;

    // Loads `path`, a tokenizer.json or its directory. The error names the file, the component and
    // what is wrong. A `shared_ptr`, because parts of a process and their threads share it.
    static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
    // Parses the text of a tokenizer.json.
    static Result<std::shared_ptr<const Tokenizer>> parse(std::string_view json);

    ~Tokenizer();
    Tokenizer(const Tokenizer&) = delete;
    Tokenizer& operator=(const Tokenizer&) = delete;

    // Text that looks like a special token becomes that token. Errors: kInvalidArgument if the text
    // is not UTF-8, naming the byte; kTooLarge if the normalizer makes the text too long
    // (normalizer.h); the interrupt's error.
    [[nodiscard]] Result<std::vector<TokenId>> encode(
        std::string_view text, AddSpecial add_special, const Interrupt& interrupt = {}
    ) const;
    // Returns a bound on the bytes that the encoding of a text of this size processes. This is
    // roughly its cost.
    [[nodiscard]] std::size_t work_max(std::size_t text_bytes) const;

    // Ids without a token decode to nothing, as in the reference, because a model's head may be
    // wider than its vocabulary. Bytes that are not UTF-8 become U+FFFD.
    [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids, SkipSpecial skip_special)
        const;

    // Returns the bytes that the token adds to the text before it. If decode() got only this token,
    // it would give U+FFFD for a part of a character, and would drop a space at the beginning.
    [[nodiscard]] Result<std::string> bytes_of(TokenId id) const;

    // Returns the largest id plus one.
    [[nodiscard]] std::int32_t vocab_size() const;
    [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;
    // Returns the token's string, as in the vocabulary, or nothing if no token has the id. The
    // string is valid as long as the tokenizer.
    [[nodiscard]] std::optional<std::string_view> id_to_token(TokenId id) const;
    [[nodiscard]] bool is_special(TokenId id) const;
    [[nodiscard]] bool is_added(TokenId id) const;

    // Returns the parts of the file that the reference ignores, one line each. The code that loads
    // the file logs these lines.
    [[nodiscard]] std::span<const std::string> warnings() const;

    // For IncrementalDecoder, which runs the same stages token by token.
    [[nodiscard]] const Decoder& decoder() const;

  private:
    struct State;
    explicit Tokenizer(std::unique_ptr<State> state);

    std::unique_ptr<State> state_;
};

}  // namespace pitstop::text
