#include "text/normalizer.h"

#include "text/byte_alphabet.h"
#include "text/unicode.h"

#include <utility>

namespace pitstop::text {
namespace {

// Keeps the code points for which `keep` returns true.
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

Error grows(std::size_t bytes_max) {
    return make_error(
        ErrorCode::kTooLarge,
        "the tokenizer's normalizer makes more than {} bytes of the text: {} times its length",
        bytes_max,
        Normalizer::kGrowthMax
    );
}

Result<> apply_step(NormalizationForm form, Section& section, std::size_t) {
    normalize(form, section.text);
    return Ok{};
}

Result<> apply_step(const LowercaseNormalizer&, Section& section, std::size_t) {
    std::string lower;
    lower.reserve(section.text.size());
    for (std::size_t pos = 0; pos < section.text.size();) {
        append_lowercase(next_code_point(section.text, pos), lower);
    }
    section.text = std::move(lower);
    return Ok{};
}

Result<> apply_step(const StripNormalizer& strip, Section& section, std::size_t) {
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

Result<> apply_step(const StripAccentsNormalizer&, Section& section, std::size_t) {
    filter(section, [](char32_t c) { return c < 0x300 || !combining_mark_set().contains(c); });
    return Ok{};
}

// Source: the Nmt rules of SentencePiece, in the reference's version.
Result<> apply_step(const NmtNormalizer&, Section& section, std::size_t) {
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

Result<> apply_step(const PrependNormalizer& prepend, Section& section, std::size_t bytes_max) {
    if (section.text.size() + prepend.text.size() > bytes_max) return grows(bytes_max);
    if (!section.text.empty()) section.text.insert(0, prepend.text);
    return Ok{};
}

Result<> apply_step(const ReplaceNormalizer& replace, Section& section, std::size_t bytes_max) {
    std::string out;
    std::size_t done = 0;
    std::size_t appended = 0;  // the bytes of the text that `out` has
    bool is_too_large = false;
    RETURN_IF_ERROR(replace.pattern.for_each_match(section.text, [&](TextSpan match) {
        // The text that replaces several characters counts as coming from the last of them.
        const bool is_one = match.end == utf8_len(section.text[0]);
        if (match.begin == 0 && (!is_one || replace.content.empty())) section.at_origin = false;
        done = match.end;
        // After the text is too large, further matches are only skipped.
        const std::size_t size = out.size() + (match.begin - appended) + replace.content.size();
        is_too_large = is_too_large || size > bytes_max;
        if (is_too_large) return;
        out.append(section.text, appended, match.begin - appended);
        out += replace.content;
        appended = match.end;
    }));
    if (done == 0) return Ok{};
    if (is_too_large || out.size() + (section.text.size() - appended) > bytes_max)
        return grows(bytes_max);
    out.append(section.text, appended);
    section.text = std::move(out);
    return Ok{};
}

Result<> apply_step(const ByteLevelNormalizer&, Section& section, std::size_t) {
    std::string out;
    append_byte_characters(section.text, out);
    section.text = std::move(out);
    return Ok{};
}

}  // namespace

std::size_t Normalizer::work_max(std::size_t text_bytes) const {
    const std::size_t bytes_max = Normalizer::bytes_max(text_bytes);
    std::size_t size = text_bytes;
    std::size_t work = 0;
    for (const NormalizerStep& step : steps_) {
        // Normalization forms and changes of case rarely make a text longer, because most text has
        // the form already.
        std::size_t growth = 1;
        std::size_t more = 0;
        if (const auto* replace = std::get_if<ReplaceNormalizer>(&step)) {
            growth = std::max<std::size_t>(replace->content.size(), 1);
        } else if (const auto* prepend = std::get_if<PrependNormalizer>(&step)) {
            more = prepend->text.size();
        } else if (std::holds_alternative<ByteLevelNormalizer>(step)) {
            growth = 2;
        }
        size = std::min(bytes_max, std::min(size, bytes_max) * std::min(growth, bytes_max) + more);
        work += size;
    }
    return work;
}

Result<> Normalizer::apply(Section& section) const {
    const std::size_t bytes_max = Normalizer::bytes_max(section.text.size());
    for (const NormalizerStep& step : steps_) {
        RETURN_IF_ERROR(
            std::visit([&](const auto& s) { return apply_step(s, section, bytes_max); }, step)
        );
        if (section.text.size() > bytes_max) return grows(bytes_max);
    }
    return Ok{};
}

}  // namespace pitstop::text
