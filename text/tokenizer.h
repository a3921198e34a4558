// Turns text into token ids and back, as a model's tokenizer.json says: exactly the ids of the
// reference implementation (Hugging Face `tokenizers` 0.23), for BPE models.
//
// A text takes this path: added tokens are cut out (added_tokens.h), what lies between is
// normalized (normalizer.h), split into pieces (pre_tokenizer.h), each piece encoded (bpe.h), and
// the special tokens put around it all (post_processor.h). Ids come back by decoder.h.
//
// Thread:  any; immutable but for a pool of scratch memory behind a mutex, so that every call has
// the
//          encodings of recent pieces at hand, and calls in parallel do not share them.
// Bounded: one scratch of about 2 MB per call that ever ran at the same time; it grows with the
//          longest text and is dropped beyond kScratchBytesMax.
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

    // Loads `path`, a tokenizer.json or the directory of one. The Error names the file, the
    // component and what is wrong with it. It is a `shared_ptr`, as the processes' parts and their
    // threads share it.
    static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
    // Reads the text of a tokenizer.json.
    static Result<std::shared_ptr<const Tokenizer>> parse(std::string_view json);

    ~Tokenizer();
    Tokenizer(const Tokenizer&) = delete;
    Tokenizer& operator=(const Tokenizer&) = delete;

    // Text that reads like a special token becomes it. Errors: kInvalidArgument, not UTF-8, and at
    // which byte; kTooLarge, the normalizer makes it too long (normalizer.h); the interrupt's.
    [[nodiscard]] Result<std::vector<TokenId>> encode(
        std::string_view text, AddSpecial add_special, const Interrupt& interrupt = {}
    ) const;
    // Returns the bytes that encoding a text of so many may go through, at most: what it costs,
    // roughly.
    [[nodiscard]] std::size_t work_max(std::size_t text_bytes) const;

    // Ids that no token has decode to nothing, as in the reference: a model's head may be wider
    // than its vocabulary. Bytes that are no UTF-8 become U+FFFD.
    [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids, SkipSpecial skip_special)
        const;

    // Returns what the token adds to a text before it: decode() of it alone gives U+FFFD for part
    // of a character, and leaves out a space that a text does not begin with.
    [[nodiscard]] Result<std::string> bytes_of(TokenId id) const;

    // Returns one more than the largest id.
    [[nodiscard]] std::int32_t vocab_size() const;
    [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;
    // Returns the token's string, as in the vocabulary; nothing where no token has the id. It is
    // valid as long as the tokenizer.
    [[nodiscard]] std::optional<std::string_view> id_to_token(TokenId id) const;
    [[nodiscard]] bool is_special(TokenId id) const;
    [[nodiscard]] bool is_added(TokenId id) const;

    // Lists what the file says that the reference ignores, one line each, for the log of whoever
    // loaded it.
    [[nodiscard]] std::span<const std::string> warnings() const;

    // IncrementalDecoder needs this: it runs the same stages token by token.
    [[nodiscard]] const Decoder& decoder() const;

  private:
    struct State;
    explicit Tokenizer(std::unique_ptr<State> state);

    std::unique_ptr<State> state_;
};

}  // namespace pitstop::text
