// A deterministic automaton for the patterns of pre-tokenizers. It never backtracks, looks up one
// table entry per code point, and finds the match that a backtracking engine finds first.
//
// Source: Thompson construction. States are lists of places, ordered by preference and cut at a
// match, as in RE2 (Cox 2010, "Regular Expression Matching in the Wild"). A condition on the next
// code point ((?!\S), $, a possessive quantifier) is decided by the step that reads this code
// point. So a match is noticed one code point late.
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
    static constexpr std::size_t kPositionsMax = 8192;  // in the pattern with its repeats expanded
    static constexpr std::size_t kStatesMax = 1024;
    static constexpr std::size_t kClassesMax = 254;

    // Returns nothing if the pattern needs a larger automaton, looks behind, looks more than one
    // code point ahead, or has an atomic group of more than one code point.
    static std::optional<Dfa> compile(const Node& pattern);

    // Returns the end of the match that begins at `at`, or null if there is none. REQUIRES: [at,
    // end) is valid UTF-8.
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
    static constexpr std::uint32_t kMatchBit = 1;  // a match ended before this code point
    static constexpr std::uint32_t kDeadBit = 2;   // no longer match is possible
    static constexpr int kStateShift = 2;          // the bits above are the next state

    [[nodiscard]] std::size_t class_beyond_ascii(const char* at, std::size_t& len) const {
        std::size_t pos = 0;
        const char32_t c = next_code_point({at, 4}, pos);
        len = pos;
        return pages_[page_of_[c >> kPageBits]][c & (kPageSize - 1)];
    }

    static constexpr int kPageBits = 8;
    static constexpr std::size_t kPageSize = 1u << kPageBits;

    // Code points that the pattern does not distinguish share a class. The end of the text is
    // another class.
    static constexpr std::size_t kAsciiLen = 128;

    std::vector<std::uint16_t> page_of_{};                      // [(kCodePointMax + 1) / kPageSize]
    std::vector<std::array<std::uint8_t, kPageSize>> pages_{};  // the distinct pages
    std::size_t num_classes_ = 1;
    std::size_t end_class_ = 0;
    // [states, num_classes_]: the transitions; state 0 is the first state.
    std::vector<std::uint16_t> table_{};
    std::vector<std::uint16_t> ascii_table_{};  // [states, kAsciiLen]: the transitions by byte
};

}  // namespace pitstop::text::regex
