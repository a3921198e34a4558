#include "text/decoder.h"

#include "text/byte_alphabet.h"

#include <algorithm>
#include <array>
#include <utility>

namespace pitstop::text {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    if (from.empty()) return;
    std::string out;
    std::size_t done = 0;
    for (std::size_t at = 0; (at = text.find(from, done)) != text.npos; done = at + from.size()) {
        out.append(text, done, at - done);
        out += to;
    }
    if (done == 0) return;
    out.append(text, done);
    text = std::move(out);
}

// Source: decoders/wordpiece.rs of the reference.
void clean_up(std::string& text) {
    constexpr std::array<std::array<std::string_view, 2>, 11> kRules = {{
        {" .", "."},
        {" ?", "?"},
        {" !", "!"},
        {" ,", ","},
        {" ' ", "'"},
        {" n't", "n't"},
        {" 'm", "'m"},
        {" do not", " don't"},
        {" 's", "'s"},
        {" 've", "'ve"},
        {" 're", "'re"},
    }};
    for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

// Returns the byte of a token <0xNN>. The reference parses the digits as Rust does, which reads
// "+F" as 15.
std::optional<char> fallback_byte(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">"))
        return std::nullopt;
    const auto digit = [](char c) {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        if (c >= 'A' && c <= 'F') return c - 'A' + 10;
        return -1;
    };
    const int high = token[3] == '+' ? 0 : digit(token[3]);
    const int low = digit(token[4]);
    if (high < 0 || low < 0) return std::nullopt;
    return static_cast<char>(high * 16 + low);
}

// Returns the bytes of a token in the byte alphabet. Returns the token itself if it has a character
// outside the alphabet.
std::string byte_level_bytes(std::string_view token) {
    std::string bytes;
    bytes.reserve(token.size());
    for (std::size_t pos = 0; pos < token.size();) {
        const std::optional<std::uint8_t> byte = byte_of_character(next_code_point(token, pos));
        if (!byte) return std::string(token);
        bytes.push_back(static_cast<char>(*byte));
    }
    return bytes;
}

std::string strip(const StripDecoder& step, std::string_view token) {
    const std::size_t width = step.content.size();
    for (std::size_t i = 0; i < step.start && token.starts_with(step.content); ++i) {
        token.remove_prefix(width);
    }
    for (std::size_t i = 0; i < step.stop && token.ends_with(step.content); ++i) {
        token.remove_suffix(width);
    }
    return std::string(token);
}

Result<std::string> replace(const ReplaceDecoder& step, std::string_view token) {
    std::string out;
    // In an empty token, the reference finds no match, even of an empty pattern.
    if (token.empty()) return out;
    std::size_t done = 0;
    RETURN_IF_ERROR(step.pattern.for_each_match(token, [&](TextSpan match) {
        out += token.substr(done, match.begin - done);
        out += step.content;
        done = match.end;
    }));
    out += token.substr(done);
    return out;
}

std::string metaspace(const MetaspaceDecoder& step, std::string_view token, bool is_first) {
    std::string out(token);
    replace_all(out, step.replacement, is_first && step.strips_first ? "" : " ");
    return out;
}

}  // namespace

std::optional<std::string> Decoder::bytes_of(std::string_view token) const {
    for (const DecoderStep& step : steps_) {
        if (std::holds_alternative<ByteLevelDecoder>(step)) return byte_level_bytes(token);
        if (!std::holds_alternative<ByteFallbackDecoder>(step)) continue;
        if (const std::optional<char> byte = fallback_byte(token)) return std::string(1, *byte);
    }
    return std::nullopt;
}

Decoder::Stream::Stream(const Decoder& decoder) : decoder_(&decoder) { reset(); }

void Decoder::Stream::reset() {
    stages_.assign(decoder_->steps_.size(), Stage{});
    bool is_fused = false;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
        stages_[i].is_fused = is_fused;
        const DecoderStep& step = decoder_->steps_[i];
        is_fused |= std::holds_alternative<FuseDecoder>(step) ||
                    std::holds_alternative<ByteLevelDecoder>(step);
    }
}

Result<> Decoder::Stream::push(std::string_view token, std::string& out) {
    return feed(0, token, out);
}

Result<> Decoder::Stream::push_as_is(std::string_view text, std::string& out) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
        // BPEDecoder and stages that collect all their input output nothing before the
        // end.
        const bool is_run = std::holds_alternative<ByteLevelDecoder>(decoder_->steps_[i]) ||
                            std::holds_alternative<ByteFallbackDecoder>(decoder_->steps_[i]);
        if (is_run && !must_collect(i)) RETURN_IF_ERROR(close(i, out));
    }
    out += text;
    return Ok{};
}

void Decoder::Stream::drop_incomplete() {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
        Stage& state = stages_[i];
        state.utf8 = LossyUtf8();
        if (!std::holds_alternative<ByteFallbackDecoder>(decoder_->steps_[i]) || must_collect(i))
            continue;
        const std::size_t whole = find_invalid_utf8(state.held).value_or(state.held.size());
        // Drops withheld bytes that are only the beginning of a code point.
        LossyUtf8 rest;
        std::string text;
        rest.push(std::string_view(state.held).substr(whole), text);
        if (text.empty()) state.held.resize(whole);
    }
}

Result<> Decoder::Stream::finish(std::string& out) {
    for (std::size_t i = 0; i < stages_.size(); ++i) RETURN_IF_ERROR(close(i, out));
    reset();
    return Ok{};
}

// Returns whether the stage comes after a Fuse but cannot work on fragments.
bool Decoder::Stream::must_collect(std::size_t stage) const {
    if (!stages_[stage].is_fused) return false;
    const DecoderStep& step = decoder_->steps_[stage];
    if (const auto* replace = std::get_if<ReplaceDecoder>(&step))
        return !replace->is_one_code_point;
    return !std::holds_alternative<FuseDecoder>(step) &&
           !std::holds_alternative<StripDecoder>(step) &&
           !std::holds_alternative<MetaspaceDecoder>(step) &&
           !std::holds_alternative<JoinDecoder>(step);
}

// Passes `piece` to a stage. `piece` is a token, or after a Fuse a fragment of the one fused token.
Result<> Decoder::Stream::feed(std::size_t stage, std::string_view piece, std::string& out) {
    if (stage == stages_.size()) {
        out += piece;
        return Ok{};
    }
    Stage& state = stages_[stage];
    if (must_collect(stage)) {
        state.held += piece;
        return Ok{};
    }
    if (!state.is_fused) return feed_token(stage, piece, out);

    const DecoderStep& step = decoder_->steps_[stage];
    if (const auto* replacing = std::get_if<ReplaceDecoder>(&step)) {
        ASSIGN_OR_RETURN(const std::string replaced, replace(*replacing, piece));
        return feed(stage + 1, replaced, out);
    }
    if (const auto* spacing = std::get_if<MetaspaceDecoder>(&step)) {
        return feed(stage + 1, metaspace(*spacing, piece, /*is_first=*/true), out);
    }
    if (const auto* stripping = std::get_if<StripDecoder>(&step)) {
        // Fragments end between code points, so a character to strip lies in one fragment.
        std::string kept;
        while (!piece.empty()) {
            if (piece.starts_with(stripping->content)) {
                piece.remove_prefix(stripping->content.size());
                if (state.is_first && state.num_stripped < stripping->start) {
                    ++state.num_stripped;
                } else if (state.num_held < stripping->stop) {
                    ++state.num_held;
                } else {
                    kept += stripping->content;
                }
                continue;
            }
            state.is_first = false;
            for (; state.num_held > 0; --state.num_held) kept += stripping->content;
            const std::size_t plain = std::min(piece.find(stripping->content), piece.size());
            kept += piece.substr(0, plain);
            piece.remove_prefix(plain);
        }
        return feed(stage + 1, kept, out);
    }
    return feed(stage + 1, piece, out);
}

Result<> Decoder::Stream::feed_token(std::size_t stage, std::string_view token, std::string& out) {
    Stage& state = stages_[stage];
    const DecoderStep& step = decoder_->steps_[stage];
    const bool was_first = std::exchange(state.is_first, false);
    const auto hand_on = [&](std::string_view piece) { return feed(stage + 1, piece, out); };

    if (std::holds_alternative<ByteLevelDecoder>(step)) {
        std::string text;
        state.utf8.push(byte_level_bytes(token), text);
        return hand_on(text);
    }
    if (std::holds_alternative<ByteFallbackDecoder>(step)) {
        if (const std::optional<char> byte = fallback_byte(token)) {
            state.held.push_back(*byte);
            return Ok{};
        }
        if (!state.held.empty()) RETURN_IF_ERROR(close(stage, out));
        return hand_on(token);
    }
    if (const auto* stripping = std::get_if<StripDecoder>(&step))
        return hand_on(strip(*stripping, token));
    if (const auto* replacing = std::get_if<ReplaceDecoder>(&step)) {
        ASSIGN_OR_RETURN(const std::string replaced, replace(*replacing, token));
        return hand_on(replaced);
    }
    if (const auto* spacing = std::get_if<MetaspaceDecoder>(&step)) {
        return hand_on(metaspace(*spacing, token, was_first));
    }
    if (const auto* bpe = std::get_if<BpeDecoder>(&step)) {
        // The last token's suffix becomes nothing. So each token is withheld until the next one
        // arrives.
        std::string previous = std::exchange(state.held, std::string(token));
        if (was_first) return Ok{};
        replace_all(previous, bpe->suffix, " ");
        return hand_on(previous);
    }
    if (const auto* wordpiece = std::get_if<WordPieceDecoder>(&step)) {
        std::string word(token);
        if (!was_first) {
            word = word.starts_with(wordpiece->prefix) ? word.substr(wordpiece->prefix.size())
                                                       : " " + word;
        }
        if (wordpiece->cleanup) clean_up(word);
        return hand_on(word);
    }
    if (const auto* ctc = std::get_if<CtcDecoder>(&step)) {
        if (!was_first && state.held == token) return Ok{};
        state.held = token;
        std::string word(token);
        replace_all(word, ctc->pad_token, "");
        if (ctc->cleanup) {
            clean_up(word);
            replace_all(word, ctc->word_delimiter_token, " ");
        }
        return word.empty() ? Result<>(Ok{}) : hand_on(word);
    }
    if (std::holds_alternative<JoinDecoder>(step) && !was_first) RETURN_IF_ERROR(hand_on(" "));
    return hand_on(token);
}

// Ends a stage, after all earlier stages have ended: passes on its withheld input.
Result<> Decoder::Stream::close(std::size_t stage, std::string& out) {
    Stage& state = stages_[stage];
    const DecoderStep& step = decoder_->steps_[stage];
    if (must_collect(stage)) {
        // The complete text is fed as one token, which is also the last.
        const std::string all = std::exchange(state.held, {});
        state.is_fused = false;
        RETURN_IF_ERROR(feed_token(stage, all, out));
        return close(stage, out);
    }
    if (std::holds_alternative<ByteLevelDecoder>(step)) {
        std::string text;
        state.utf8.finish(text);
        return feed(stage + 1, text, out);
    }
    if (std::holds_alternative<ByteFallbackDecoder>(step) && !state.held.empty()) {
        const std::string bytes = std::exchange(state.held, {});
        if (!find_invalid_utf8(bytes)) return feed(stage + 1, bytes, out);
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            RETURN_IF_ERROR(feed(stage + 1, kReplacementCharacter, out));
        }
    }
    if (const auto* bpe = std::get_if<BpeDecoder>(&step); bpe != nullptr && !state.is_first) {
        std::string last = std::exchange(state.held, {});
        replace_all(last, bpe->suffix, "");
        return feed(stage + 1, last, out);
    }
    return Ok{};
}

}  // namespace pitstop::text
