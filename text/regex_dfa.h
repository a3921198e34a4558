// A deterministic automaton for the patterns that pre-tokenizers use: no backtracking, one table
// look-up per code point, and the same match that a backtracking engine finds first.
//
// Source: Thompson construction; states are lists of positions in order of preference, cut at a
// match, as in RE2 (Cox 2010, "Regular Expression Matching in the Wild"). A condition on the next
// code point
// ((?!\S), $, and what a possessive quantifier means) is settled by the step that reads it, which
// is why a match is noticed one code point late.
//
// Thread: any; immutable.
#pragma once

#include "text/regex_syntax.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace pitstop::regex {

class Dfa {
  public:
    static constexpr std::size_t kPositionsMax =
        8192;  // of the pattern with its repeats written out
    static constexpr std::size_t kStatesMax = 1024;
    static constexpr std::size_t kClassesMax = 254;

    // Nothing where the pattern needs more than an automaton of this size, or looks behind, further
    // ahead than one code point, or is atomic around more than one.
    static std::optional<Dfa> compile(const Node& pattern);

    // The end of the match that begins at `begin`, or nothing. REQUIRES: valid UTF-8, `begin`
    // between two code points.
    [[nodiscard]] std::optional<std::size_t> match_at(std::string_view text, std::size_t begin)
        const {
        const char* at = text.data() + begin;
        const char* const end = text.data() + text.size();
        const char* matched = nullptr;
        const std::uint16_t* row = table_.data();
        for (;;) {
            const std::uint16_t step = row[at == end ? end_class_ : class_at(at)];
            if ((step & kMatchBit) != 0) matched = at;
            const std::uint16_t next = step & kStateMask;
            if (next == kDead) break;
            row = table_.data() + static_cast<std::size_t>(next) * num_classes_;
            at += utf8_len(*at);
        }
        if (matched == nullptr) return std::nullopt;
        return static_cast<std::size_t>(matched - text.data());
    }

    [[nodiscard]] std::size_t num_states() const { return table_.size() / num_classes_; }
    [[nodiscard]] std::size_t num_classes() const { return num_classes_; }

  private:
    friend class DfaBuilder;
    static constexpr std::uint16_t kMatchBit = 0x8000;  // a match ended before the code point read
    static constexpr std::uint16_t kStateMask = 0x7fff;
    static constexpr std::uint16_t kDead = 0x7fff;

    [[nodiscard]] std::size_t class_at(const char* at) const {
        const auto byte = static_cast<unsigned char>(*at);
        if (byte < 0x80) return ascii_[byte];
        std::size_t pos = 0;
        const char32_t c = next_code_point({at, 4}, pos);
        return pages_[page_of_[c >> kPageBits]][c & (kPageSize - 1)];
    }

    static constexpr int kPageBits = 8;
    static constexpr std::size_t kPageSize = 1u << kPageBits;

    // Code points that no part of the pattern tells apart share a class; one more is the end.
    std::array<std::uint8_t, 128> ascii_{};
    std::vector<std::uint16_t> page_of_{};                      // [(kCodePointMax + 1) / kPageSize]
    std::vector<std::array<std::uint8_t, kPageSize>> pages_{};  // the distinct pages
    std::size_t num_classes_ = 1;
    std::size_t end_class_ = 0;
    std::vector<std::uint16_t>
        table_{};  // [states, num_classes_]: next state, with kMatchBit; state 0 begins
};

}  // namespace pitstop::regex
