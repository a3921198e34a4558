#include "text/pre_tokenizer.h"

#include "base/check.h"
#include "text/byte_alphabet.h"

#include <algorithm>
#include <utility>

namespace pitstop::text {
namespace {

using Piece = Pieces::Piece;

// A part of a piece.
struct Part {
    TextSpan span{};
    bool is_match = false;
};

// Divides `text` into the matches and the parts between them. An empty match is an empty part.
Result<> find_parts(const Regex& regex, std::string_view text, std::vector<Part>& parts) {
    std::size_t done = 0;
    RETURN_IF_ERROR(regex.for_each_match(text, [&](TextSpan match) {
        if (match.begin != done) parts.push_back({{done, match.begin}, false});
        parts.push_back({match, true});
        done = match.end;
    }));
    if (done != text.size()) parts.push_back({{done, text.size()}, false});
    return Ok{};
}

Result<> find_parts(const CodePointSet& set, std::string_view text, std::vector<Part>& parts) {
    std::size_t done = 0;
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t begin = pos;
        if (!set.contains(next_code_point(text, pos))) continue;
        if (begin != done) parts.push_back({{done, begin}, false});
        parts.push_back({{begin, pos}, true});
        done = pos;
    }
    if (done != text.size()) parts.push_back({{done, text.size()}, false});
    return Ok{};
}

// Joins neighbours as `behavior` says, and keeps the parts that become pieces.
void merge_parts(SplitBehavior behavior, std::vector<Part>& parts) {
    std::vector<Part> merged;
    bool previous_match = false;
    switch (behavior) {
        case SplitBehavior::kIsolated:
            return;
        case SplitBehavior::kRemoved:
            std::erase_if(parts, [](const Part& part) { return part.is_match; });
            return;
        case SplitBehavior::kContiguous:
            for (const Part& part : parts) {
                if (part.is_match == previous_match && !merged.empty()) {
                    merged.back().span.end = part.span.end;
                } else {
                    merged.push_back(part);
                }
                previous_match = part.is_match;
            }
            break;
        case SplitBehavior::kMergedWithPrevious:
            for (const Part& part : parts) {
                if (part.is_match && !previous_match && !merged.empty()) {
                    merged.back().span.end = part.span.end;
                } else {
                    merged.push_back(part);
                }
                previous_match = part.is_match;
            }
            break;
        case SplitBehavior::kMergedWithNext:
            for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
                if (part->is_match && !previous_match && !merged.empty()) {
                    merged.back().span.begin = part->span.begin;
                } else {
                    merged.push_back(*part);
                }
                previous_match = part->is_match;
            }
            merged = {merged.rbegin(), merged.rend()};
            break;
    }
    parts = std::move(merged);
}

void add_piece(const Piece& parent, TextSpan span, std::vector<Piece>& out) {
    if (span.begin == span.end) return;
    out.push_back({
        .begin = parent.begin + static_cast<std::uint32_t>(span.begin),
        .end = parent.begin + static_cast<std::uint32_t>(span.end),
        .at_origin = parent.at_origin && span.begin == 0,
    });
}

// The most common behaviour: every match is a piece. Needs no list of parts.
Result<> split_isolated(
    const Regex& regex, const Pieces& in, const Piece& piece, std::vector<Piece>& out
) {
    const std::string_view text = in.text_of(piece);
    std::size_t done = 0;
    RETURN_IF_ERROR(regex.for_each_match(text, [&](TextSpan match) {
        add_piece(piece, {done, match.begin}, out);
        add_piece(piece, match, out);
        done = match.end;
    }));
    add_piece(piece, {done, text.size()}, out);
    return Ok{};
}

Result<> apply_step(const SplitStep& split, Pieces& pieces, Pieces& scratch) {
    scratch.pieces.clear();
    const Regex* regex = std::get_if<Regex>(&split.pattern);
    std::vector<Part> parts;
    for (const Piece& piece : pieces.pieces) {
        if (regex != nullptr && split.behavior == SplitBehavior::kIsolated) {
            RETURN_IF_ERROR(split_isolated(*regex, pieces, piece, scratch.pieces));
            continue;
        }
        parts.clear();
        RETURN_IF_ERROR(std::visit(
            [&](const auto& pattern) { return find_parts(pattern, pieces.text_of(piece), parts); },
            split.pattern
        ));
        if (split.invert) {
            for (Part& part : parts) part.is_match = !part.is_match;
        }
        merge_parts(split.behavior, parts);
        for (const Part& part : parts) add_piece(piece, part.span, scratch.pieces);
    }
    std::swap(pieces.pieces, scratch.pieces);
    return Ok{};
}

// Rewrites every piece: `write(text, at_origin, out)` appends its new text.
template <class Write>
Result<> rewrite(Pieces& pieces, Pieces& scratch, Write&& write) {
    scratch.text.clear();
    const std::size_t bytes_max = std::min(pieces.bytes_max, PreTokenizer::kTextBytesMax);
    for (Piece& piece : pieces.pieces) {
        const std::size_t begin = scratch.text.size();
        write(pieces.text_of(piece), piece.at_origin, scratch.text);
        if (scratch.text.size() > bytes_max) {
            return make_error(
                ErrorCode::kTooLarge,
                "the text grows beyond {} bytes in the pre-tokenizer",
                bytes_max
            );
        }
        piece.begin = static_cast<std::uint32_t>(begin);
        piece.end = static_cast<std::uint32_t>(scratch.text.size());
    }
    std::swap(pieces.text, scratch.text);
    return Ok{};
}

Result<> apply_step(const PrefixSpaceStep&, Pieces& pieces, Pieces& scratch) {
    return rewrite(pieces, scratch, [](std::string_view text, bool, std::string& out) {
        if (!text.starts_with(' ')) out.push_back(' ');
        out += text;
    });
}

Result<> apply_step(const ByteLevelStep&, Pieces& pieces, Pieces& scratch) {
    return rewrite(pieces, scratch, [](std::string_view text, bool, std::string& out) {
        append_byte_characters(text, out);
    });
}

Result<> apply_step(const MetaspaceStep& step, Pieces& pieces, Pieces& scratch) {
    return rewrite(pieces, scratch, [&](std::string_view text, bool at_origin, std::string& out) {
        const bool may_prepend = step.prepend == MetaspaceStep::Prepend::kAlways ||
                                 (step.prepend == MetaspaceStep::Prepend::kFirst && at_origin);
        const bool has_it = text.starts_with(' ') || text.starts_with(step.replacement);
        if (may_prepend && !has_it) out += step.replacement;
        for (const char c : text) {
            if (c == ' ') {
                out += step.replacement;
            } else {
                out.push_back(c);
            }
        }
    });
}

Result<> apply_step(const FixedLengthStep& step, Pieces& pieces, Pieces& scratch) {
    scratch.pieces.clear();
    for (const Piece& piece : pieces.pieces) {
        const std::string_view text = pieces.text_of(piece);
        std::size_t begin = 0;
        std::size_t pos = 0;
        for (std::size_t num = 1; pos < text.size(); ++num) {
            pos += utf8_len(text[pos]);
            if (num % step.length != 0 && pos < text.size()) continue;
            add_piece(piece, {begin, pos}, scratch.pieces);
            begin = pos;
        }
    }
    std::swap(pieces.pieces, scratch.pieces);
    return Ok{};
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {
    if (!steps_.empty() && std::holds_alternative<ByteLevelStep>(steps_.back())) {
        steps_.pop_back();
        yields_bytes_ = true;
    }
}

Result<> PreTokenizer::apply(Section&& section, Pieces& pieces, Pieces& scratch) const {
    pieces.pieces.clear();
    if (section.text.size() > kTextBytesMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "a text of {} bytes; at most {} are tokenized",
            section.text.size(),
            kTextBytesMax
        );
    }
    pieces.text = std::move(section.text);
    pieces.bytes_max = Normalizer::bytes_max(pieces.text.size());
    if (pieces.text.empty()) return Ok{};
    pieces.pieces.push_back({
        .begin = 0,
        .end = static_cast<std::uint32_t>(pieces.text.size()),
        .at_origin = section.at_origin,
    });
    for (const PreTokenizerStep& step : steps_) {
        RETURN_IF_ERROR(
            std::visit([&](const auto& s) { return apply_step(s, pieces, scratch); }, step)
        );
    }
    return Ok{};
}

}  // namespace pitstop::text
