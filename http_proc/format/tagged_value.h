// Reads one value that is written without quotes, up to its closing tag, and writes it as JSON.
// Text is written while it arrives, other values when they are whole.
//
// The closing tag inside a JSON string does not end an object or a list. If the value turns out to
// be no JSON, it ended at the first tag, and the bytes after that tag are read again.
#pragma once

#include "http_proc/format/tool_formats.h"
#include "http_proc/format/value_reader.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

class TaggedValue {
  public:
    enum class Status : std::uint8_t {
        kMore,
        kDone,
        kDoneBefore,  // the value ended num_after() bytes before this byte
    };

    TaggedValue() = default;
    // `types`: the types that the schema allows, which outlive this; null: none is known.
    TaggedValue(const ToolFormatRow& row, const std::vector<std::string>* types);

    // Whether the value is written while it arrives, beginning with its opening quote.
    [[nodiscard]] bool is_text() const { return typing_ == Typing::kText; }
    // Appends to `json` what the byte decides.
    [[nodiscard]] Status read(char c, std::string& json);
    // Called at the output's end, like a byte that JSON cannot contain. kMore: not a whole value.
    [[nodiscard]] Status finish(std::string& json);
    [[nodiscard]] std::size_t num_after() const { return num_after_; }

  private:
    enum class Typing : std::uint8_t {
        kText,    // text, unchanged
        kJson,    // JSON, or text if it is no JSON
        kEither,  // the schema's types decide, when the value is whole
    };
    enum class Nesting : std::uint8_t {
        kUnknown,
        kOpen,  // an object or a list that has not ended
        kNone,
    };

    Status read_text(char c, std::string& json);
    void follow(char c);
    Status end_at_first_tag(std::string& json);
    void write(std::string& json);
    [[nodiscard]] bool is_text_of_either() const;

    std::string_view close_{};
    bool has_lines_ = false;
    Typing typing_ = Typing::kText;
    const std::vector<std::string>* types_ = nullptr;
    bool skips_line_end_ = false;
    std::string marker_{};  // of a text: the possible beginning of its end
    std::string token_{};   // of other values: all of it
    Nesting nesting_ = Nesting::kUnknown;
    std::optional<ValueReader> reader_{};
    std::optional<std::size_t> first_end_{};  // in `token_`: after the first tag in a JSON string
    std::size_t num_after_ = 0;
};

}  // namespace pitstop::http
