// Walks through a template's tokens, and counts the parser's depth of recursion.
#pragma once

#include "jinja/builtins.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::jinja {

[[nodiscard]] inline Error unexpected(const Token& token, std::string_view wanted) {
    return type_error("line {}: {} where {} is needed", token.line, describe(token), wanted);
}

// Returns the error for Jinja syntax that is missing here.
[[nodiscard]] inline Error unsupported(int line, std::string_view what, std::string_view name) {
    return make_error(
        ErrorCode::kUnsupported, "line {}: {} '{}' is not supported", line, what, name
    );
}

class TokenCursor {
  public:
    // REQUIRES: the last token is kEnd.
    explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    [[nodiscard]] const Token& peek(std::size_t ahead = 0) const {
        return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
    }
    const Token& take() {
        const Token& token = peek();
        if (pos_ + 1 < tokens_.size()) ++pos_;
        return token;
    }
    bool skip_operator(std::string_view text) {
        const bool is_there = peek().is_operator(text);
        if (is_there) take();
        return is_there;
    }
    bool skip_name(std::string_view text) {
        const bool is_there = peek().is_name(text);
        if (is_there) take();
        return is_there;
    }
    Result<> expect_operator(std::string_view text) {
        if (skip_operator(text)) return Ok{};
        return unexpected(peek(), "'" + std::string(text) + "'");
    }
    Result<std::string> expect_name() {
        if (peek().kind != TokenKind::kName) return unexpected(peek(), "a name");
        return take().text;
    }
    Result<> expect_block_end() {
        if (peek().kind != TokenKind::kBlockEnd) return unexpected(peek(), "%}");
        take();
        return Ok{};
    }

    // The cursor's position, and a token that it has passed.
    [[nodiscard]] std::size_t position() const { return pos_; }
    [[nodiscard]] const Token& at(std::size_t position) const { return tokens_[position]; }

    // Enters one level of recursion, and leaves it on destruction.
    class Level {
      public:
        explicit Level(TokenCursor& tokens) : depth_(tokens.depth_) { ++depth_; }
        ~Level() { --depth_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        [[nodiscard]] bool is_too_deep() const { return depth_ > kNestingMax; }

      private:
        int& depth_;
    };
    [[nodiscard]] Error too_deep() const {
        return make_error(
            ErrorCode::kTooLarge, "line {}: nested deeper than {} levels", peek().line, kNestingMax
        );
    }

  private:
    std::vector<Token> tokens_;
    std::size_t pos_ = 0;
    int depth_ = 0;
};

}  // namespace pitstop::jinja
