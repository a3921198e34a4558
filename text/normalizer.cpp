#include "text/normalizer.h"

#include "text/byte_alphabet.h"
#include "text/unicode.h"

#include <utility>

namespace pitstop {
namespace {

// Keeps the code points for which `keep` holds.
template <class Keep>
void filter(Section& section, Keep&& keep) {
    const std::string_view text = section.text;
    std::string kept;
    kept.reserve(text.size());
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t begin = pos;
        if (keep(next_code_point(text, pos))) {
            kept += text.substr(begin, pos - begin);
        } else if (begin == 0) {
            section.at_origin = false;
        }
    }
    section.text = std::move(kept);
}

Result<> apply_step(NormalizationForm form, Section& section) {
    normalize(form, section.text);
    return Ok{};
}

Result<> apply_step(const LowercaseNormalizer&, Section& section) {
    std::string lower;
    lower.reserve(section.text.size());
    for (std::size_t pos = 0; pos < section.text.size();) {
        append_lowercase(next_code_point(section.text, pos), lower);
    }
    section.text = std::move(lower);
    return Ok{};
}

Result<> apply_step(const StripNormalizer& strip, Section& section) {
    std::string_view text = section.text;
    if (strip.left) {
        for (std::size_t pos = 0; pos < text.size();) {
            if (!is_white_space(next_code_point(text, pos))) break;
            text.remove_prefix(pos);
            pos = 0;
            section.at_origin = false;
        }
    }
    while (strip.right && !text.empty()) {
        std::size_t last = text.size() - 1;
        while (is_continuation_byte(text[last])) --last;
        std::size_t pos = last;
        if (!is_white_space(next_code_point(text, pos))) break;
        text = text.substr(0, last);
    }
    section.text = std::string(text);
    return Ok{};
}

Result<> apply_step(const StripAccentsNormalizer&, Section& section) {
    filter(section, [](char32_t c) { return c < 0x300 || !combining_mark_set().contains(c); });
    return Ok{};
}

// Source: the Nmt rules of SentencePiece, as the reference has them.
Result<> apply_step(const NmtNormalizer&, Section& section) {
    filter(section, [](char32_t c) {
        const bool is_dropped = (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) ||
                                c == 0x7f || c == 0x8f || c == 0x9f;
        return !is_dropped;
    });
    std::string spaced;
    spaced.reserve(section.text.size());
    for (std::size_t pos = 0; pos < section.text.size();) {
        const char32_t c = next_code_point(section.text, pos);
        const bool is_space = c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                              (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 ||
                              c == 0x2581 || c == 0xfeff || c == 0xfffd;
        append_utf8(is_space ? U' ' : c, spaced);
    }
    section.text = std::move(spaced);
    return Ok{};
}

Result<> apply_step(const PrependNormalizer& prepend, Section& section) {
    if (!section.text.empty()) section.text.insert(0, prepend.text);
    return Ok{};
}

Result<> apply_step(const ReplaceNormalizer& replace, Section& section) {
    std::string out;
    std::size_t done = 0;
    RETURN_IF_ERROR(replace.pattern.for_each_match(section.text, [&](TextSpan match) {
        // What stands for more than one character counts as coming from the last of them.
        const bool is_one = match.end == utf8_len(section.text[0]);
        if (match.begin == 0 && (!is_one || replace.content.empty())) section.at_origin = false;
        out.append(section.text, done, match.begin - done);
        out += replace.content;
        done = match.end;
    }));
    if (done == 0) return Ok{};
    out.append(section.text, done);
    section.text = std::move(out);
    return Ok{};
}

Result<> apply_step(const ByteLevelNormalizer&, Section& section) {
    std::string out;
    append_byte_characters(section.text, out);
    section.text = std::move(out);
    return Ok{};
}

}  // namespace

Result<> Normalizer::apply(Section& section) const {
    for (const NormalizerStep& step : steps_) {
        RETURN_IF_ERROR(std::visit([&](const auto& s) { return apply_step(s, section); }, step));
    }
    return Ok{};
}

}  // namespace pitstop
