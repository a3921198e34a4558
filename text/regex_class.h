// Parses the parts of a pattern that match one code point: a class in brackets, a property, or an
// escape.
//
// Source: as in regex_syntax.h.
#pragma once

#include "base/result.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <optional>
#include <string_view>

namespace pitstop::text::regex {

struct Options {
    bool ignore_case = false;
    bool dot_matches_newline = false;
};

// Reads a pattern from left to right. The parser of the full grammar derives from this class.
class ClassParser {
  protected:
    explicit ClassParser(std::string_view pattern) : pattern_(pattern) {}

    [[nodiscard]] bool at_end() const { return pos_ == pattern_.size(); }
    [[nodiscard]] char peek(std::size_t ahead = 0) const {
        return pos_ + ahead < pattern_.size() ? pattern_[pos_ + ahead] : '\0';
    }
    bool take(std::string_view text) {
        if (!pattern_.substr(pos_).starts_with(text)) return false;
        pos_ += text.size();
        return true;
    }
    char32_t take_code_point() { return next_code_point(pattern_, pos_); }
    void skip() { ++pos_; }

    [[nodiscard]] std::size_t position() const { return pos_; }
    void go_back_to(std::size_t position) { pos_ = position; }
    [[nodiscard]] std::string_view text_since(std::size_t begin) const {
        return pattern_.substr(begin, pos_ - begin);
    }

    // Both functions count how deep groups and classes are nested. Error: too deep.
    Result<> begin_nested();
    void end_nested() { --nesting_; }

    [[nodiscard]] Error malformed(std::string_view what) const {
        return make_error(
            ErrorCode::kMalformed, "{} at byte {} of the pattern '{}'", what, pos_, pattern_
        );
    }
    [[nodiscard]] Error unsupported(std::string_view what) const {
        return make_error(
            ErrorCode::kUnsupported,
            "{} at byte {} of the pattern '{}' is not supported",
            what,
            pos_,
            pattern_
        );
    }

    Result<CodePointSet> parse_class(Options options);
    // Parses \d, \p{L} and so on. Returns nothing if a single character follows.
    Result<std::optional<CodePointSet>> parse_class_escape();
    Result<char32_t> parse_character_escape();
    [[nodiscard]] Result<CodePointSet> fold(const CodePointSet& set) const;

  private:
    Result<CodePointSet> parse_posix(Options options);
    Result<CodePointSet> parse_property();
    Result<CodePointRange> parse_range();
    Result<char32_t> parse_character();
    Result<char32_t> parse_number(int base, std::size_t digits_min, std::size_t digits_max);

    std::string_view pattern_;
    std::size_t pos_ = 0;
    int nesting_ = 0;
};

}  // namespace pitstop::text::regex
