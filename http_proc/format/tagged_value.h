// Reads one value that is written without quotes, up to its closing tag, and writes it as JSON.
// Writes a text as it arrives, and any other value once it is complete.
//
// A closing tag inside a JSON string does not end an object or a list. If the value turns out not
// to be JSON, it ended at the first tag; then the bytes after that tag are read again.
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
    // `types`: the types that the schema allows; must outlive this value. Null: unknown.
    TaggedValue(const ToolFormatRow& row, const std::vector<std::string>* types);

    // Returns whether the value is written as it arrives, beginning with its opening quote.
    [[nodiscard]] bool is_text() const { return typing_ == Typing::kText; }
    // Reads one byte, and appends to `json` the text that is final.
    [[nodiscard]] Status read(char c, std::string& json);
    // Called at the output's end. Returns kMore if the value is not complete.
    [[nodiscard]] Status finish(std::string& json);
    [[nodiscard]] std::size_t num_after() const { return num_after_; }

  private:
    enum class Typing : std::uint8_t {
        kText,    // text, unchanged
        kJson,    // JSON; text if it is not JSON
        kEither,  // the schema's types decide, once the value is complete
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
    std::string marker_{};  // of a text: the possible start of its end
    std::string token_{};   // of any other value: the whole value
    Nesting nesting_ = Nesting::kUnknown;
    std::optional<ValueReader> reader_{};
    std::optional<std::size_t> first_end_{};  // in `token_`: end of the first tag in a JSON string
    std::size_t num_after_ = 0;
};

}  // namespace pitstop::http
