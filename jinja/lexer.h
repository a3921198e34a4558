// Splits a template's source into tokens. The text around tags is trimmed by Hugging Face's
// settings. trim_blocks removes a line end after a block tag. lstrip_blocks removes white space
// before a block tag that begins a line. `-` and `+` at a tag override both settings. A line end at
// the very end is dropped.
//
// Source: Jinja 3.1, lexer.py, and transformers' chat_template_utils.py (its environment).
#pragma once

#include "base/result.h"
#include "jinja/value.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::jinja {

enum class TokenKind : std::uint8_t {
    kData,           // text between tags
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,
    kNumber,
    kOperator,
    kEnd,
};

struct Token {
    TokenKind kind = TokenKind::kEnd;
    int line = 1;
    std::string text{};  // data, a name or an operator; of a string, its value
    Value number{};

    [[nodiscard]] bool is(TokenKind a_kind, std::string_view a_text) const {
        return kind == a_kind && text == a_text;
    }
    [[nodiscard]] bool is_operator(std::string_view a_text) const {
        return is(TokenKind::kOperator, a_text);
    }
    [[nodiscard]] bool is_name(std::string_view a_text) const {
        return is(TokenKind::kName, a_text);
    }
};

// Returns the token's text for an error.
[[nodiscard]] std::string describe(const Token& token);

// The last token is kEnd. Errors: kInvalidArgument, naming the line. REQUIRES: valid UTF-8.
[[nodiscard]] Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace pitstop::jinja
