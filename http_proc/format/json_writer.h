// Writes JSON directly into a string, for the hot path of answers: building a tree of values first
// would cost more time than the engine needs for the token.
//
//   JsonWriter json;
//   json.begin_object();
//   json.key("text").string(text).key("output_ids").raw("[1,2]");
//   json.end_object();
//   send(json.take());
//
// The writer adds commas. Brackets are not checked to be balanced.
#pragma once

#include "base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {

class JsonWriter {
  public:
    JsonWriter& begin_object() { return open('{'); }
    JsonWriter& end_object() { return close('}'); }
    JsonWriter& begin_array() { return open('['); }
    JsonWriter& end_array() { return close(']'); }

    JsonWriter& key(std::string_view name);  // one of our names, so not escaped
    JsonWriter& string(std::string_view text);
    JsonWriter& integer(std::int64_t value);
    JsonWriter& number(double value);
    // Writes the shortest text that reads back as the same float. -inf, which JSON lacks, becomes
    // -9999.0, as in the engines.
    JsonWriter& logprob(float value);
    JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
    JsonWriter& null() { return raw("null"); }
    JsonWriter& raw(std::string_view json);          // one value that is already JSON
    JsonWriter& raw_list(std::string_view entries);  // the entries of an array: "1,2"
    JsonWriter& ids(std::span<const TokenId> ids);   // writes an array

    [[nodiscard]] const std::string& text() const { return text_; }
    [[nodiscard]] std::string take() { return std::exchange(text_, {}); }
    // Starts over. Keeps the memory unless it is larger than `kept_bytes_max`.
    void clear(std::size_t kept_bytes_max);
    // Appends bytes that are not JSON, such as the frame of an event.
    void append(std::string_view bytes) {
        text_ += bytes;
        needs_comma_ = false;
    }

  private:
    JsonWriter& open(char bracket);
    JsonWriter& close(char bracket);
    void comma();

    std::string text_{};
    bool needs_comma_ = false;
};

void append_json_string(std::string& to, std::string_view text);
void append_json_logprob(std::string& to, float value);

}  // namespace pitstop::http
