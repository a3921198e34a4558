#include "text/incremental_decoder.h"

#include <algorithm>
#include <utility>

namespace pitstop {

IncrementalDecoder::IncrementalDecoder(
    std::shared_ptr<const Tokenizer> tokenizer, Options options, std::span<const TokenId> prompt
)
    : tokenizer_(std::move(tokenizer)), options_(options), stream_(tokenizer_->decoder()) {
    std::string dropped;
    for (const TokenId id : prompt.last(std::min(prompt.size(), kPromptTailLen))) {
        // A prompt that cannot be decoded leaves the decoder at the beginning: its output is not to
        // blame.
        if (!push(id, dropped)) stream_ = Decoder::Stream(tokenizer_->decoder());
    }
}

Result<> IncrementalDecoder::push(TokenId id, std::string& text) {
    const std::optional<std::string_view> token = tokenizer_->id_to_token(id);
    if (!token) return Ok{};
    if (options_.skip_special == SkipSpecial::kYes && tokenizer_->is_special(id)) return Ok{};
    const bool is_added = tokenizer_->is_added(id);
    const bool follows_added = std::exchange(last_was_added_, is_added);
    const bool stands_alone = is_added && follows_added &&
                              options_.skip_special == SkipSpecial::kNo &&
                              !options_.spaces_between_special_tokens;
    if (stands_alone) return stream_.push_as_is(*token, text);
    return stream_.push(*token, text);
}

Result<> IncrementalDecoder::finish(std::string& text) { return stream_.finish(text); }

}  // namespace pitstop
