// Reads one call that is a JSON object: {"name": N, "arguments": {...}}. `parameters` is accepted
// for `arguments`, members may have any order, and other members are skipped.
//
// Bounded: ValueReader's bounds.
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
    // `depth`: the levels of JSON that the object's members are within.
    explicit CallObject(std::size_t depth) : depth_(depth) {}

    // Called after the opening brace was read.
    void begin();
    // kCall: the byte is the object's last. REQUIRES: begin().
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
    std::string token_{};  // a key or a value that is no object
    std::optional<ValueReader> value_{};
    bool is_arguments_ = false;  // the value is the arguments of the call
};

}  // namespace pitstop::http
