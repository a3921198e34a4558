// Runs the patterns that pre-tokenizers use on a deterministic automaton: no backtracking, one
// table look-up per code point, and the same match that a backtracking engine finds first.
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
#include <vector>

namespace pitstop::text::regex {

class Dfa {
  public:
    static constexpr std::size_t kPositionsMax =
        8192;  // positions of the pattern with its repeats written out
    static constexpr std::size_t kStatesMax = 1024;
    static constexpr std::size_t kClassesMax = 254;

    // Returns nothing if the pattern needs more than an automaton of this size, or looks behind,
    // further ahead than one code point, or is atomic around more than one.
    static std::optional<Dfa> compile(const Node& pattern);

    // Returns the end of the match that begins at `at`, or null. REQUIRES: [at, end) is valid
    // UTF-8.
    [[nodiscard]] const char* match(const char* at, const char* end) const {
        const char* matched = nullptr;
        std::uint32_t state = 0;
        while (at != end) {
            const auto byte = static_cast<unsigned char>(*at);
            std::size_t len = 1;
            const std::uint32_t step =
                byte < 0x80 ? ascii_table_[state * kAsciiLen + byte]
                            : table_[state * num_classes_ + class_beyond_ascii(at, len)];
            if ((step & kMatchBit) != 0) matched = at;
            if ((step & kDeadBit) != 0) return matched;
            state = step >> kStateShift;
            at += len;
        }
        return (table_[state * num_classes_ + end_class_] & kMatchBit) != 0 ? end : matched;
    }

  private:
    friend class DfaBuilder;
    static constexpr std::uint32_t kMatchBit = 1;  // a match ended before the code point read
    static constexpr std::uint32_t kDeadBit = 2;   // nothing longer matches
    static constexpr int kStateShift = 2;          // above it: the next state

    [[nodiscard]] std::size_t class_beyond_ascii(const char* at, std::size_t& len) const {
        std::size_t pos = 0;
        const char32_t c = next_code_point({at, 4}, pos);
        len = pos;
        return pages_[page_of_[c >> kPageBits]][c & (kPageSize - 1)];
    }

    static constexpr int kPageBits = 8;
    static constexpr std::size_t kPageSize = 1u << kPageBits;

    // Code points that no part of the pattern tells apart share a class; one more is the end.
    static constexpr std::size_t kAsciiLen = 128;

    std::vector<std::uint16_t> page_of_{};                      // [(kCodePointMax + 1) / kPageSize]
    std::vector<std::array<std::uint8_t, kPageSize>> pages_{};  // the distinct pages
    std::size_t num_classes_ = 1;
    std::size_t end_class_ = 0;
    std::vector<std::uint16_t> table_{};        // [states, num_classes_]: the step; state 0 begins
    std::vector<std::uint16_t> ascii_table_{};  // [states, kAsciiLen]: the same, by byte
};

}  // namespace pitstop::text::regex
