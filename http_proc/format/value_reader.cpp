#include "http_proc/format/value_reader.h"

#include "http_proc/format/json_body.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iterator>

namespace pitstop::http {
namespace {

using Status = ValueReader::Status;

constexpr std::size_t kTokenBytesMax = 4096;

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_of_token(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.';
}

int hex_value_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

void append_utf8(std::string& to, std::uint32_t code) {
    const auto add = [&](std::uint32_t byte) { to += static_cast<char>(byte); };
    if (code < 0x80) {
        append_json_escaped(to, static_cast<char>(code));
    } else if (code < 0x800) {
        add(0xc0 | (code >> 6));
        add(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        add(0xe0 | (code >> 12));
        add(0x80 | ((code >> 6) & 0x3f));
        add(0x80 | (code & 0x3f));
    } else {
        add(0xf0 | (code >> 18));
        add(0x80 | ((code >> 12) & 0x3f));
        add(0x80 | ((code >> 6) & 0x3f));
        add(0x80 | (code & 0x3f));
    }
}

// Converts a token such as 1. or .5 or +1, which Python allows and JSON does not.
std::string json_of_token(std::string token) {
    if (token == "True") return "true";
    if (token == "False") return "false";
    if (token == "None") return "null";
    if (token.starts_with('+')) token.erase(0, 1);
    if (token.starts_with('.')) token.insert(0, "0");
    if (token.starts_with("-.")) token.insert(1, "0");
    if (token.ends_with('.')) token += '0';
    return token;
}

}  // namespace

void append_json_escaped(std::string& json, char c) {
    switch (c) {
        case '"':
            json += "\\\"";
            return;
        case '\\':
            json += "\\\\";
            return;
        case '\b':
            json += "\\b";
            return;
        case '\f':
            json += "\\f";
            return;
        case '\n':
            json += "\\n";
            return;
        case '\r':
            json += "\\r";
            return;
        case '\t':
            json += "\\t";
            return;
        default:
            break;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
        fmt::format_to(std::back_inserter(json), "\\u{:04x}", byte);
    } else {
        json += c;
    }
}

Status ValueReader::read(char c, std::string& json) {
    const bool is_python = language_ == Language::kPython;
    switch (state_) {
        case State::kString:
            return read_string(c, json);
        case State::kEscape:
            return read_escape(c, json);
        case State::kHex:
            return read_hex(c, json);
        case State::kLowSurrogate:
            if (c != '\\') return Status::kBroken;
            state_ = State::kLowSurrogateU;
            return Status::kMore;
        case State::kLowSurrogateU:
            if (c != 'u') return Status::kBroken;
            state_ = State::kHex;
            num_hex_ = 4;
            code_ = 0;
            return Status::kMore;
        case State::kToken:
            if (is_of_token(c)) {
                if (token_.size() == kTokenBytesMax) return Status::kBroken;
                token_ += c;
                return Status::kMore;
            }
            if (!end_token(json)) return Status::kBroken;
            token_.clear();
            if (brackets_.empty()) return Status::kDoneBefore;
            state_ = State::kAfterValue;
            break;
        default:
            break;
    }
    if (is_json_space(c)) return Status::kMore;
    const bool has_other_quote = is_python && c == '\'';
    switch (state_) {
        case State::kFirstValue:
            if (c == ']') return close(c, json);
            return begin_value(c, json);
        case State::kFirstKey:
            if (c == '}') return close(c, json);
            [[fallthrough]];
        case State::kKey:
            if (c == '"' || has_other_quote) return begin_string(c, /*is_key=*/true, json);
            if (is_python && c == '}') return close(c, json);
            return Status::kBroken;
        case State::kColon:
            if (c != ':') return Status::kBroken;
            json += ':';
            state_ = State::kValue;
            return Status::kMore;
        case State::kAfterValue:
            if (c != ',') return close(c, json);
            has_comma_ = true;
            state_ = brackets_.back() == '{' ? State::kKey : State::kValue;
            return Status::kMore;
        default:
            break;
    }
    const bool is_after_comma = has_comma_ && !brackets_.empty() && brackets_.back() == '[';
    if (is_python && is_after_comma && c == ']') return close(c, json);
    return begin_value(c, json);
}

void ValueReader::write_comma(std::string& json) {
    if (has_comma_) json += ',';
    has_comma_ = false;
}

Status ValueReader::begin_value(char c, std::string& json) {
    if (c == '{') return open(c, State::kFirstKey, json);
    if (c == '[') return open(c, State::kFirstValue, json);
    if (c == '"' || (c == '\'' && language_ == Language::kPython))
        return begin_string(c, /*is_key=*/false, json);
    if (!is_of_token(c)) return Status::kBroken;
    write_comma(json);
    token_ = c;
    state_ = State::kToken;
    return Status::kMore;
}

Status ValueReader::begin_string(char c, bool is_key, std::string& json) {
    write_comma(json);
    json += '"';
    quote_ = c;
    is_key_ = is_key;
    state_ = State::kString;
    return Status::kMore;
}

Status ValueReader::open(char c, State next, std::string& json) {
    if (depth_ + brackets_.size() >= static_cast<std::size_t>(kJsonDepthMax))
        return Status::kBroken;
    write_comma(json);
    json += c;
    brackets_ += c;
    state_ = next;
    return Status::kMore;
}

Status ValueReader::close(char c, std::string& json) {
    const char opening = c == '}' ? '{' : c == ']' ? '[' : '\0';
    if (brackets_.empty() || brackets_.back() != opening) return Status::kBroken;
    brackets_.pop_back();
    has_comma_ = false;
    json += c;
    return end_value();
}

Status ValueReader::end_value() {
    if (brackets_.empty()) return Status::kDone;
    state_ = State::kAfterValue;
    return Status::kMore;
}

bool ValueReader::takes_utf8(unsigned char c) {
    if (num_utf8_ > 0) {
        if (c < utf8_min_ || c > utf8_max_) return false;
        --num_utf8_;
        utf8_min_ = 0x80;
        utf8_max_ = 0xbf;
        return true;
    }
    if (c < 0x80) return true;
    if (c < 0xc2 || c > 0xf4) return false;
    num_utf8_ = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (c == 0xe0) utf8_min_ = 0xa0;  // refuses overlong forms
    if (c == 0xed) utf8_max_ = 0x9f;  // refuses surrogates
    if (c == 0xf0) utf8_min_ = 0x90;
    if (c == 0xf4) utf8_max_ = 0x8f;
    return true;
}

Status ValueReader::read_string(char c, std::string& json) {
    if (!takes_utf8(static_cast<unsigned char>(c))) return Status::kBroken;
    if (num_utf8_ == 0 && c == quote_) {
        json += '"';
        if (!is_key_) return end_value();
        state_ = State::kColon;
        return Status::kMore;
    }
    if (c == '\\') {
        state_ = State::kEscape;
        return Status::kMore;
    }
    if (static_cast<unsigned char>(c) < 0x20 && language_ == Language::kJson)
        return Status::kBroken;
    append_json_escaped(json, c);
    return Status::kMore;
}

Status ValueReader::read_escape(char c, std::string& json) {
    constexpr std::string_view kLetters = "bfnrt\"\\/";
    constexpr std::string_view kMeanings = "\b\f\n\r\t\"\\/";
    const bool is_python = language_ == Language::kPython;
    state_ = State::kString;
    if (const std::size_t letter = kLetters.find(c); letter != std::string_view::npos) {
        append_json_escaped(json, kMeanings[letter]);
        return Status::kMore;
    }
    if (c == 'u' || (is_python && (c == 'x' || c == 'U'))) {
        state_ = State::kHex;
        num_hex_ = c == 'u' ? 4 : c == 'x' ? 2 : 8;
        code_ = 0;
        return Status::kMore;
    }
    if (!is_python) return Status::kBroken;
    if (c == '\'') {
        json += c;
        return Status::kMore;
    }
    if (c == '\n') return Status::kMore;  // an escaped line break is dropped
    // As in Python, a backslash before any other character remains.
    json += "\\\\";
    return read_string(c, json);
}

Status ValueReader::read_hex(char c, std::string& json) {
    const int digit = hex_value_of(c);
    if (digit < 0) return Status::kBroken;
    code_ = code_ * 16 + static_cast<std::uint32_t>(digit);
    if (--num_hex_ > 0) return Status::kMore;
    return take_code_point(code_, json);
}

Status ValueReader::take_code_point(std::uint32_t code, std::string& json) {
    const bool is_low = code >= 0xdc00 && code <= 0xdfff;
    if (high_ != 0) {
        if (!is_low) return Status::kBroken;
        code = 0x10000 + ((high_ - 0xd800) << 10) + (code - 0xdc00);
        high_ = 0;
    } else if (is_low || code > 0x10ffff) {
        return Status::kBroken;
    } else if (code >= 0xd800 && code <= 0xdbff) {
        high_ = code;
        state_ = State::kLowSurrogate;
        return Status::kMore;
    }
    append_utf8(json, code);
    state_ = State::kString;
    return Status::kMore;
}

bool ValueReader::end_token(std::string& json) const {
    const std::string token = language_ == Language::kPython ? json_of_token(token_) : token_;
    const nlohmann::json value = nlohmann::json::parse(token, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return false;
    json += value.dump();
    return true;
}

bool ValueReader::finish(std::string& json) {
    return state_ == State::kToken && brackets_.empty() && end_token(json);
}

std::optional<std::string> json_of_value(std::string_view text, ValueReader::Language language) {
    ValueReader reader(language);
    std::string json;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const Status status = reader.read(text[i], json);
        if (status == Status::kMore) continue;
        if (status == Status::kBroken) return std::nullopt;
        const std::size_t end = status == Status::kDone ? i + 1 : i;
        if (text.find_first_not_of(" \t\r\n", end) != std::string_view::npos) return std::nullopt;
        return json;
    }
    if (!reader.finish(json)) return std::nullopt;
    return json;
}

}  // namespace pitstop::http
