// Reads one call that is a JSON object: {"name": N, "arguments": {...}}. Members may have any
// order, `parameters` is accepted for `arguments`, and other members are skipped.
//
// Bounded: by the bounds of ValueReader.
#pragma once

#include "http_proc/format/call_body.h"
#include "http_proc/format/value_reader.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::http {

class CallObject {
  public:
    // `depth`: the nesting depth of the object's members within the body.
    explicit CallObject(std::size_t depth) : depth_(depth) {}

    // Called after the opening brace was read.
    void begin();
    // Reads one byte. Returns kCall for the object's last byte. REQUIRES: begin() was called.
    [[nodiscard]] CallStep read(char c, CallBody& body);

  private:
    enum class Place : std::uint8_t { kFirst, kKey, kColon, kValue, kAfter };

    CallStep read_key(char c);
    CallStep read_value(char c, CallBody& body);
    CallStep end_of_value(CallBody& body);

    std::size_t depth_;
    Place place_ = Place::kFirst;
    bool has_comma_ = false;  // a comma precedes this member
    std::string key_{};
    std::string token_{};  // a key, or a value that is not an object
    std::optional<ValueReader> value_{};
    bool is_arguments_ = false;  // the value being read is the arguments of the call
};

}  // namespace pitstop::http
