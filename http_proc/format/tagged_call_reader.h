// Reads bodies of calls whose arguments are keys and values between tags:
//
//   (`name_open` NAME `name_close` PARAMETER* `call_close`)* `close`
//
// A PARAMETER is `key_open` KEY `key_close` `value_open` VALUE `value_close`. If the tool's schema
// has the type string, VALUE is the text itself.
#pragma once

#include "http_proc/format/call_body.h"
#include "http_proc/format/call_text.h"
#include "http_proc/format/tagged_value.h"
#include "http_proc/format/tool_formats.h"
#include "http_proc/format/tool_schemas.h"

#include <cstdint>
#include <memory>
#include <string>

namespace pitstop::http {

class TaggedCallReader {
  public:
    // `is_named`: the marker that began the body also opens a name, and the closing marker is
    // optional. `schemas` may be null.
    TaggedCallReader(
        const ToolFormatRow& row, std::shared_ptr<const ToolSchemas> schemas, bool is_named
    )
        : row_(&row),
          schemas_(std::move(schemas)),
          needs_no_close_(is_named),
          place_(is_named || row.name_open.empty() ? Place::kName : Place::kBetween) {}

    [[nodiscard]] CallStep read(char c, CallBody& body);
    // Returns whether the body may end where the output ends.
    [[nodiscard]] bool is_whole(const CallBody& body) const;
    // Called at the output's end. Returns true if a value may have ended earlier; then the body's
    // unread bytes are read again.
    [[nodiscard]] bool ends_earlier(CallBody& body);

  private:
    enum class Place : std::uint8_t {
        kBetween,  // between two calls of a section
        kName,
        kNextKey,  // also at the end of the call
        kKey,
        kValueOpen,
        kValue,
        kOptionalEnd,
    };

    CallStep read_name(char c, CallBody& body);
    CallStep read_next_key(char c, CallBody& body);
    CallStep read_key(char c, CallBody& body);
    CallStep read_value(char c, CallBody& body);
    bool begin_call(CallBody& body) const;
    void begin_parameter(CallBody& body);

    const ToolFormatRow* row_;
    std::shared_ptr<const ToolSchemas> schemas_;
    bool needs_no_close_;
    Place place_;
    SectionReader section_{};
    MarkerReader value_open_{};
    OptionalEndReader end_{};
    std::string token_{};   // a name or a key
    std::string marker_{};  // the possible start of a marker after a parameter
    std::string key_{};
    TaggedValue value_{};
};

}  // namespace pitstop::http
