#include "text/incremental_decoder.h"

#include "text/utf8.h"

#include <algorithm>
#include <utility>

namespace pitstop::text {
namespace {

// Returns whether a token is a byte <0x80> to <0xBF>. Such a byte begins no code point.
bool is_continuation_token(std::optional<std::string_view> token) {
    constexpr std::string_view kFirstDigits = "89AB";
    return token && token->size() == 6 && token->starts_with("<0x") && token->ends_with(">") &&
           kFirstDigits.find((*token)[3]) != kFirstDigits.npos;
}

}  // namespace

IncrementalDecoder::IncrementalDecoder(
    std::shared_ptr<const Tokenizer> tokenizer, Options options, std::span<const TokenId> prompt
)
    : tokenizer_(std::move(tokenizer)), options_(options), stream_(tokenizer_->decoder()) {
    std::span<const TokenId> tail = prompt.last(std::min(prompt.size(), kPromptTailLen));
    // The tail may begin within a code point of the prompt. The run of byte tokens that begins
    // there would not be UTF-8, and would spoil the output that continues the run.
    while (prompt.size() >= kPromptTailLen && !tail.empty() &&
           is_continuation_token(tokenizer_->id_to_token(tail[0]))) {
        tail = tail.subspan(1);
    }
    std::string dropped;
    for (const TokenId id : tail) {
        // If a prompt cannot be decoded, the decoder starts anew: an error in the prompt must not
        // affect the output.
        if (!push_to_stream(id, dropped)) stream_ = Decoder::Stream(tokenizer_->decoder());
    }
    Decoder::Stream ended = stream_;
    ended.drop_incomplete();
    if (!ended.finish(prompt_rest_)) prompt_rest_.clear();
}

// Removes the prompt's part from the new text, which begins at `begin` in `text`.
void IncrementalDecoder::remove_prompt(std::string& text, std::size_t begin) {
    if (prompt_rest_.empty()) return;
    const std::size_t len_max = std::min(prompt_rest_.size(), text.size() - begin);
    std::size_t common = 0;
    while (common < len_max && text[begin + common] == prompt_rest_[common]) ++common;
    if (common < len_max) {
        // The prompt's last text has changed. So the output's text begins at the code point that
        // has the first difference.
        while (is_continuation_byte(text[begin + common])) --common;
        prompt_rest_.clear();
    } else {
        prompt_rest_.erase(0, common);
    }
    text.erase(begin, common);
}

Result<> IncrementalDecoder::push(TokenId id, std::string& text) {
    const std::size_t begin = text.size();
    RETURN_IF_ERROR(push_to_stream(id, text));
    remove_prompt(text, begin);
    return Ok{};
}

Result<> IncrementalDecoder::push_to_stream(TokenId id, std::string& text) {
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

Result<> IncrementalDecoder::finish(std::string& text) {
    const std::size_t begin = text.size();
    RETURN_IF_ERROR(stream_.finish(text));
    remove_prompt(text, begin);
    return Ok{};
}

}  // namespace pitstop::text
