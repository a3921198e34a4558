// Reads bodies of calls written as a Python list: [NAME(KEY=LITERAL, ...), ...].
#pragma once

#include "http_proc/format/call_body.h"
#include "http_proc/format/call_text.h"
#include "http_proc/format/tool_formats.h"
#include "http_proc/format/value_reader.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::http {

class PythonCallReader {
  public:
    explicit PythonCallReader(const ToolFormatRow& row) : row_(&row) {}
    [[nodiscard]] CallStep read(char c, CallBody& body);
    // Returns whether the body may end where the output ends.
    [[nodiscard]] bool is_whole(const CallBody&) const { return place_ == Place::kOptionalEnd; }

  private:
    enum class Place : std::uint8_t {
        kBegin,
        kBetween,
        kName,
        kNextKey,
        kKey,
        kValue,
        kOptionalEnd
    };

    CallStep read_between(char c, CallBody& body);
    CallStep read_name(char c, CallBody& body);
    CallStep read_next_key(char c, CallBody& body);
    CallStep read_key(char c, CallBody& body);
    CallStep read_value(char c, CallBody& body);

    const ToolFormatRow* row_;
    Place place_ = Place::kBegin;
    bool has_comma_ = true;
    std::string token_{};  // a name or a key
    std::optional<ValueReader> value_{};
    OptionalEndReader end_{};
};

}  // namespace pitstop::http
