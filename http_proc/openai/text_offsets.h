// Computes `text_offset` of /v1/completions: where each token begins in the text, in characters.
// All tokens of a character have its place. Tokens outside of the text occupy no place.
//
// Bounded: a part of one character.
#pragma once

#include "base/ids.h"
#include "http_proc/server/token_texts.h"
#include "text/utf8.h"

#include <cstdint>
#include <string_view>

namespace pitstop::http {

class TextOffsets {
  public:
    // Returns the place of the next token, which adds `bytes` to the text.
    [[nodiscard]] std::int64_t next(std::string_view bytes);

  private:
    text::LossyUtf8 utf8_{};
    std::int64_t num_characters_ = 0;  // complete characters so far
    bool is_inside_ = false;           // the text so far ends inside a character
};

// The part of the prompt's text that each token of the prompt adds.
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
