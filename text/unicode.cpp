#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace pitstop::text {
namespace {

// Code points whose lower case is the code point plus `delta`: first, first + stride, ..., last.
struct LowercaseRun {
    char32_t first = 0;
    char32_t last = 0;
    char32_t stride = 1;
    std::int32_t delta = 0;
};

#include "text/unicode_data.inc"

// The order is that of make_unicode_data.py.
constexpr std::array<std::string_view, 30> kCategoryNames = {
    "lu", "ll", "lt", "lm", "lo", "mn", "mc", "me", "nd", "nl", "no", "pc", "pd", "ps", "pe",
    "pi", "pf", "po", "sm", "sc", "sk", "so", "zs", "zl", "zp", "cc", "cf", "co", "cn", "cs",
};

struct LongName {
    std::string_view name;
    std::string_view category;  // or the first letter of a group
};
constexpr LongName kLongNames[] = {
    {"letter", "l"},
    {"uppercaseletter", "lu"},
    {"lowercaseletter", "ll"},
    {"titlecaseletter", "lt"},
    {"modifierletter", "lm"},
    {"otherletter", "lo"},
    {"mark", "m"},
    {"nonspacingmark", "mn"},
    {"spacingmark", "mc"},
    {"enclosingmark", "me"},
    {"number", "n"},
    {"decimalnumber", "nd"},
    {"letternumber", "nl"},
    {"othernumber", "no"},
    {"punctuation", "p"},
    {"connectorpunctuation", "pc"},
    {"dashpunctuation", "pd"},
    {"openpunctuation", "ps"},
    {"closepunctuation", "pe"},
    {"initialpunctuation", "pi"},
    {"finalpunctuation", "pf"},
    {"otherpunctuation", "po"},
    {"symbol", "s"},
    {"mathsymbol", "sm"},
    {"currencysymbol", "sc"},
    {"modifiersymbol", "sk"},
    {"othersymbol", "so"},
    {"separator", "z"},
    {"spaceseparator", "zs"},
    {"lineseparator", "zl"},
    {"paragraphseparator", "zp"},
    {"other", "c"},
    {"control", "cc"},
    {"format", "cf"},
    {"privateuse", "co"},
    {"unassigned", "cn"},
};

struct NamedRanges {
    std::string_view name;
    std::span<const CodePointRange> ranges;
};
constexpr NamedRanges kNamedRanges[] = {
    {"alphabetic", kAlphabetic},
    {"alpha", kAlphabetic},
    {"latin", kScriptLatin},
    {"greek", kScriptGreek},
    {"cyrillic", kScriptCyrillic},
    {"armenian", kScriptArmenian},
    {"hebrew", kScriptHebrew},
    {"arabic", kScriptArabic},
    {"devanagari", kScriptDevanagari},
    {"bengali", kScriptBengali},
    {"tamil", kScriptTamil},
    {"telugu", kScriptTelugu},
    {"thai", kScriptThai},
    {"lao", kScriptLao},
    {"tibetan", kScriptTibetan},
    {"myanmar", kScriptMyanmar},
    {"khmer", kScriptKhmer},
    {"georgian", kScriptGeorgian},
    {"ethiopic", kScriptEthiopic},
    {"mongolian", kScriptMongolian},
    {"hangul", kScriptHangul},
    {"hiragana", kScriptHiragana},
    {"katakana", kScriptKatakana},
    {"bopomofo", kScriptBopomofo},
    {"han", kScriptHan},
    {"common", kScriptCommon},
    {"inherited", kScriptInherited},
};

CodePointSet set_of(std::span<const CodePointRange> ranges) {
    return CodePointSet(std::vector<CodePointRange>(ranges.begin(), ranges.end()));
}

// Returns the code points of a category ("lu") or of a group of categories ("l").
CodePointSet category_set(std::string_view name) {
    std::vector<CodePointRange> ranges;
    for (std::size_t i = 0; i < std::size(kCategoryRuns); ++i) {
        if (!kCategoryNames[kCategoryRuns[i] % 32].starts_with(name)) continue;
        const char32_t end =
            i + 1 < std::size(kCategoryRuns) ? kCategoryRuns[i + 1] / 32 : kCodePointMax + 1;
        ranges.push_back({kCategoryRuns[i] / 32, end - 1});
    }
    return CodePointSet(std::move(ranges));
}

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const CodePointRange& a, const CodePointRange& b) {
        return a.first < b.first;
    });
    const auto add = [&](char32_t first, char32_t last) {
        if (first > last) return;
        if (!ranges_.empty() && first <= ranges_.back().last + 1) {
            ranges_.back().last = std::max(ranges_.back().last, last);
        } else {
            ranges_.push_back({first, last});
        }
    };
    for (const CodePointRange& range : ranges) {
        add(range.first, std::min<char32_t>(range.last, 0xd7ff));
        add(std::max<char32_t>(range.first, 0xe000), std::min(range.last, kCodePointMax));
    }
}

bool CodePointSet::contains(char32_t code_point) const {
    const auto after = std::upper_bound(
        ranges_.begin(),
        ranges_.end(),
        code_point,
        [](char32_t c, const auto& range) { return c < range.first; }
    );
    return after != ranges_.begin() && code_point <= std::prev(after)->last;
}

CodePointSet CodePointSet::complement() const {
    std::vector<CodePointRange> gaps;
    char32_t next = 0;
    for (const CodePointRange& range : ranges_) {
        if (range.first > next) gaps.push_back({next, range.first - 1});
        next = range.last + 1;
    }
    if (next <= kCodePointMax) gaps.push_back({next, kCodePointMax});
    return CodePointSet(std::move(gaps));
}

CodePointSet CodePointSet::unite(const CodePointSet& other) const {
    std::vector<CodePointRange> both = ranges_;
    both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
    return CodePointSet(std::move(both));
}

CodePointSet CodePointSet::intersect(const CodePointSet& other) const {
    return complement().unite(other.complement()).complement();
}

std::optional<CodePointSet> find_property(std::string_view name) {
    std::string plain;
    for (const char c : name) {
        if (c == ' ' || c == '_' || c == '-') continue;
        plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
    }
    if (plain == "any") return CodePointSet({{0, kCodePointMax}});
    if (plain == "ascii") return CodePointSet({{0, 0x7f}});
    if (plain == "whitespace") return white_space_set();
    for (const NamedRanges& named : kNamedRanges) {
        if (named.name == plain) return set_of(named.ranges);
    }
    std::string_view category = plain;
    for (const LongName& known : kLongNames) {
        if (known.name == plain) category = known.category;
    }
    if (category.size() > 2) return std::nullopt;
    CodePointSet set = category_set(category);
    if (category.empty() || set.is_empty()) return std::nullopt;
    return set;
}

bool is_white_space(char32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 0x9 && c <= 0xd);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

const CodePointSet& white_space_set() {
    static const CodePointSet set({
        {0x9, 0xd},
        {0x20, 0x20},
        {0x85, 0x85},
        {0xa0, 0xa0},
        {0x1680, 0x1680},
        {0x2000, 0x200a},
        {0x2028, 0x2029},
        {0x202f, 0x202f},
        {0x205f, 0x205f},
        {0x3000, 0x3000},
    });
    return set;
}

const CodePointSet& numeric_set() {
    static const CodePointSet set = set_of(kNumeric);
    return set;
}

const CodePointSet& punctuation_set() {
    static const CodePointSet set = set_of(kPunctuation);
    return set;
}

const CodePointSet& word_set() {
    static const CodePointSet set = set_of(kWord);
    return set;
}

const CodePointSet& combining_mark_set() {
    static const CodePointSet set = set_of(kCombiningMarks);
    return set;
}

const CodePointSet& oniguruma_word_set() {
    // The set has alphabetic code points, marks, decimal digits, connectors, and the superscripts
    // and fractions of Latin-1.
    static const CodePointSet set =
        set_of(kAlphabetic)
            .unite(category_set("m"))
            .unite(category_set("nd"))
            .unite(category_set("pc"))
            .unite(CodePointSet({{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}));
    return set;
}

const CodePointSet& oniguruma_punct_set() {
    static const CodePointSet set = set_of(kOnigurumaPunct);
    return set;
}

std::span<const CodePointRange> not_in_unicode_9() { return kNotInUnicode9; }
std::span<const CodePointRange> nfc_sensitive() { return kNfcSensitive; }

void append_lowercase(char32_t code_point, std::string& out) {
    if (code_point < 0x80) {
        const bool is_upper = code_point >= 'A' && code_point <= 'Z';
        out.push_back(static_cast<char>(is_upper ? code_point + 32 : code_point));
        return;
    }
    if (code_point == 0x130) {  // the only code point whose lower case is two code points
        out += "i\xcc\x87";
        return;
    }
    const auto after = std::upper_bound(
        std::begin(kLowercaseRuns),
        std::end(kLowercaseRuns),
        code_point,
        [](char32_t c, const LowercaseRun& run) { return c < run.first; }
    );
    if (after != std::begin(kLowercaseRuns)) {
        const LowercaseRun& run = *std::prev(after);
        if (code_point <= run.last && (code_point - run.first) % run.stride == 0) {
            code_point = static_cast<char32_t>(static_cast<std::int32_t>(code_point) + run.delta);
        }
    }
    append_utf8(code_point, out);
}

}  // namespace pitstop::text
