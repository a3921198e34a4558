// The places where tokens begin in a text, in characters: `text_offset` of /v1/completions. All
// tokens of one character share its place, and tokens outside of the text occupy none.
//
// Bounded: holds part of a character.
#pragma once

#include "base/ids.h"
#include "http_proc/server/token_texts.h"
#include "text/utf8.h"

#include <cstdint>
#include <string_view>

namespace pitstop::http {

class TextOffsets {
  public:
    // Returns where the next token begins, which adds these bytes to the text.
    [[nodiscard]] std::int64_t next(std::string_view bytes);

  private:
    text::LossyUtf8 utf8_{};
    std::int64_t num_characters_ = 0;  // complete ones
    bool is_inside_ = false;           // the text so far ends inside a character
};

// What each of a prompt's tokens adds to the prompt's text.
class PromptText {
  public:
    // The source of the text: the caller, or the decoded tokens.
    enum class From { kCaller, kTokens };

    PromptText(std::string_view text, From from, const TokenTexts& texts)
        : rest_(text), from_(from), texts_(&texts) {}

    [[nodiscard]] std::string_view next(TokenId id);

  private:
    std::string_view rest_;
    From from_;
    const TokenTexts* texts_;
};

}  // namespace pitstop::http
