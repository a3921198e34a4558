#include "http_proc/openai/text_offsets.h"

#include <algorithm>
#include <string>

namespace pitstop::http {
namespace {

std::int64_t num_characters(std::string_view text) {
    return std::ranges::count_if(text, [](char c) { return !text::is_continuation_byte(c); });
}

}  // namespace

std::int64_t TextOffsets::next(std::string_view bytes) {
    const std::int64_t begin = num_characters_;
    if (bytes.empty()) return begin;
    // The earlier bytes of an unfinished character may turn out to be invalid. Then they become one
    // U+FFFD.
    std::string first;
    utf8_.push(bytes.substr(0, 1), first);
    const std::int64_t num_first = num_characters(first);
    const bool is_spoiled =
        is_inside_ &&
        (num_first > 1 || (num_first == 1 && !text::is_continuation_byte(bytes.front())));
    std::string rest;
    utf8_.push(bytes.substr(1), rest);
    num_characters_ += num_first + num_characters(rest);
    text::LossyUtf8 ended = utf8_;
    std::string held;
    ended.finish(held);
    is_inside_ = !held.empty();
    return is_spoiled ? begin + 1 : begin;
}

std::string_view PromptText::next(TokenId id) {
    const std::string_view added = texts_->bytes_of(id);
    // A text may omit the space with which its first token begins.
    for (const std::string_view bytes : {added, texts_->of(id)}) {
        if (!rest_.starts_with(bytes)) continue;
        rest_.remove_prefix(bytes.size());
        return bytes;
    }
    // The tokenizer adds special tokens before a text; the text itself does not contain them.
    if (from_ == From::kCaller && texts_->is_special(id)) return {};
    rest_.remove_prefix(std::min(rest_.size(), added.size()));
    return added;
}

}  // namespace pitstop::http
