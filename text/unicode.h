// Sets of code points, and the properties of characters that tokenizers use.
//
// The properties are those of the reference implementation of tokenizer.json, not of one version of
// Unicode. make_unicode_data.py lists their sources. They depend on no library here.
#pragma once

#include "text/utf8.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::text {

struct CodePointRange {
    char32_t first = 0;
    char32_t last = 0;  // inclusive
    friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

// A set of code points. It has no surrogates, because no valid text has any.
class CodePointSet {
  public:
    CodePointSet() = default;
    explicit CodePointSet(char32_t one) : ranges_{{one, one}} {}
    // The ranges may have any order, and may overlap.
    explicit CodePointSet(std::vector<CodePointRange> ranges);

    [[nodiscard]] bool contains(char32_t code_point) const;
    [[nodiscard]] bool is_empty() const { return ranges_.empty(); }
    // Returns the ranges: sorted, disjoint, and as few as possible.
    [[nodiscard]] std::span<const CodePointRange> ranges() const { return ranges_; }

    [[nodiscard]] CodePointSet complement() const;
    [[nodiscard]] CodePointSet unite(const CodePointSet& other) const;
    [[nodiscard]] CodePointSet intersect(const CodePointSet& other) const;
    friend bool operator==(const CodePointSet&, const CodePointSet&) = default;

  private:
    std::vector<CodePointRange> ranges_{};
};

// Returns the set of \p{name}. The name is a general category (Lu, or L for its group, or Letter),
// a script, or one of Alphabetic, White_Space, ASCII, Any. Case, spaces, '_' and '-' are ignored.
[[nodiscard]] std::optional<CodePointSet> find_property(std::string_view name);

[[nodiscard]] bool is_white_space(char32_t code_point);
[[nodiscard]] const CodePointSet& white_space_set();
[[nodiscard]] const CodePointSet& numeric_set();      // of the pre-tokenizer Digits
[[nodiscard]] const CodePointSet& punctuation_set();  // of the pre-tokenizer Punctuation
[[nodiscard]] const CodePointSet& word_set(
);  // \w of the pre-tokenizer Whitespace, and of single_word
[[nodiscard]] const CodePointSet& combining_mark_set();   // of the normalizer StripAccents
[[nodiscard]] const CodePointSet& oniguruma_word_set();   // \w in a regular expression
[[nodiscard]] const CodePointSet& oniguruma_punct_set();  // [[:punct:]] in a regular expression

// The code points that the normalization forms treat as unassigned, and those that NFC may change.
[[nodiscard]] std::span<const CodePointRange> not_in_unicode_9();
[[nodiscard]] std::span<const CodePointRange> nfc_sensitive();

// Appends the lower case of a code point, which may be two code points. It does not depend on the
// context (as a final sigma would) or on the language.
void append_lowercase(char32_t code_point, std::string& out);

}  // namespace pitstop::text
