#include "http_proc/format/json_writer.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iterator>

namespace pitstop::http {
namespace {

constexpr float kNoLogprob = -9999.0F;

void append_number(std::string& to, fmt::string_view text) {
    to.append(text.data(), text.size());
    // Without a decimal point or an exponent, it would be read back as an integer.
    if (std::string_view(text.data(), text.size()).find_first_of(".e") == std::string_view::npos)
        to += ".0";
}

template <class T>
void append_float(std::string& to, T value) {
    std::array<char, 40> buffer{};
    const auto result = fmt::format_to_n(buffer.data(), buffer.size(), "{}", value);
    append_number(to, {buffer.data(), result.size});
}

}  // namespace

void append_json_string(std::string& to, std::string_view text) {
    to += '"';
    std::size_t begin = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20) continue;
        to.append(text.substr(begin, i - begin));
        begin = i + 1;
        switch (c) {
            case '"':
                to += "\\\"";
                break;
            case '\\':
                to += "\\\\";
                break;
            case '\n':
                to += "\\n";
                break;
            case '\r':
                to += "\\r";
                break;
            case '\t':
                to += "\\t";
                break;
            default:
                fmt::format_to(std::back_inserter(to), "\\u{:04x}", static_cast<unsigned>(c));
        }
    }
    to.append(text.substr(begin));
    to += '"';
}

void append_json_logprob(std::string& to, float value) {
    append_float(to, std::isfinite(value) ? value : kNoLogprob);
}

void JsonWriter::comma() {
    if (needs_comma_) text_ += ',';
    needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
    comma();
    text_ += bracket;
    needs_comma_ = false;
    return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
    text_ += bracket;
    needs_comma_ = true;
    return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
    comma();
    text_ += '"';
    text_ += name;
    text_ += "\":";
    needs_comma_ = false;
    return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
    comma();
    append_json_string(text_, text);
    return *this;
}

JsonWriter& JsonWriter::integer(std::int64_t value) {
    comma();
    const fmt::format_int digits(value);
    text_.append(digits.data(), digits.size());
    return *this;
}

JsonWriter& JsonWriter::number(double value) {
    comma();
    append_float(text_, std::isfinite(value) ? value : 0.0);
    return *this;
}

JsonWriter& JsonWriter::logprob(float value) {
    comma();
    append_json_logprob(text_, value);
    return *this;
}

JsonWriter& JsonWriter::raw_list(std::string_view entries) {
    comma();
    text_ += '[';
    text_ += entries;
    text_ += ']';
    return *this;
}

JsonWriter& JsonWriter::ids(std::span<const TokenId> ids) {
    begin_array();
    for (const TokenId id : ids) integer(pitstop::raw(id));
    return end_array();
}

void JsonWriter::clear(std::size_t kept_bytes_max) {
    text_.clear();
    if (text_.capacity() > kept_bytes_max) text_.shrink_to_fit();
    needs_comma_ = false;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
    comma();
    text_ += json;
    return *this;
}

}  // namespace pitstop::http
