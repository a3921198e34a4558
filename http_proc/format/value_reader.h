// Reads one value byte by byte, as JSON or as a Python literal, and writes it as compact
// JSON as it arrives: members in their order, strings and numbers as nlohmann::json writes
// them.
//
//   ValueReader reader(ValueReader::Language::kJson);
//   for (char c : text) status = reader.read(c, json);
//
// Bounded: kJsonDepthMax levels; kTokenBytesMax for a number. A byte takes constant time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

class ValueReader {
  public:
    // kPython accepts strings in either quotes, True, False, None, and commas before a bracket.
    enum class Language : std::uint8_t { kJson, kPython };
    enum class Status : std::uint8_t {
        kMore,        // the byte was read
        kDone,        // the byte was the value's last
        kDoneBefore,  // the value had ended before the byte
        kBroken,      // no value can have this byte here
    };

    // `depth`: the number of levels around the value.
    explicit ValueReader(Language language, std::size_t depth = 0)
        : language_(language), depth_(depth) {}

    // Reads one byte, and appends to `json` the final text. REQUIRES: the last status was kMore.
    [[nodiscard]] Status read(char c, std::string& json);
    // Ends a number or a name at the end of the text. Returns whether the value is complete.
    [[nodiscard]] bool finish(std::string& json);

  private:
    enum class State : std::uint8_t {
        kValue,
        kFirstValue,  // also the end of the list
        kFirstKey,    // also the end of the object
        kKey,
        kColon,
        kAfterValue,
        kString,
        kEscape,
        kHex,
        kLowSurrogate,   // a backslash must follow
        kLowSurrogateU,  // the letter u must follow
        kToken,          // a number, true, None, ...
    };

    Status begin_value(char c, std::string& json);
    Status begin_string(char c, bool is_key, std::string& json);
    Status open(char c, State next, std::string& json);
    Status close(char c, std::string& json);
    Status end_value();
    Status read_string(char c, std::string& json);
    Status read_escape(char c, std::string& json);
    Status read_hex(char c, std::string& json);
    Status take_code_point(std::uint32_t code, std::string& json);
    [[nodiscard]] bool takes_utf8(unsigned char c);
    [[nodiscard]] bool end_token(std::string& json) const;
    void write_comma(std::string& json);

    Language language_;
    std::size_t depth_;
    State state_ = State::kValue;
    std::string brackets_{};  // the open brackets
    std::string token_{};
    char quote_ = '"';
    bool is_key_ = false;
    bool has_comma_ = false;  // a comma was read, but not written yet
    int num_hex_ = 0;         // digits still missing
    std::uint32_t code_ = 0;
    std::uint32_t high_ = 0;  // a high surrogate, until its low one follows
    int num_utf8_ = 0;        // missing bytes of the current character
    unsigned char utf8_min_ = 0x80;
    unsigned char utf8_max_ = 0xbf;
};

// Returns the whole text as compact JSON without white space around it; nothing if it is no value.
[[nodiscard]] std::optional<std::string> json_of_value(
    std::string_view text, ValueReader::Language language
);

// Appends a byte of a string's content, escaped.
void append_json_escaped(std::string& json, char c);

}  // namespace pitstop::http
