// Readers for bodies of calls with JSON arguments: the formats of Hermes, Llama, Mistral, Kimi and
// DeepSeek. Each reader reads one body, which begins after its marker.
#pragma once

#include "http_proc/format/call_body.h"
#include "http_proc/format/call_object.h"
#include "http_proc/format/call_text.h"
#include "http_proc/format/tool_formats.h"
#include "http_proc/format/value_reader.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace pitstop::http {

// Reads arguments that are an object. Reports them only once the text is known to be an object.
class CallArguments {
  public:
    // Reads one byte. Returns `at_end` for the object's last byte.
    [[nodiscard]] CallStep read(char c, CallBody& body, CallStep at_end);

  private:
    ValueReader value_{ValueReader::Language::kJson};
};

// Reads: OBJECT `close`.
class ObjectCallReader {
  public:
    explicit ObjectCallReader(const ToolFormatRow& row) : row_(&row) {}
    [[nodiscard]] CallStep read(char c, CallBody& body);
    // Returns whether the body may end where the output ends.
    [[nodiscard]] bool is_whole(const CallBody&) const { return place_ == Place::kClose; }

  private:
    enum class Place : std::uint8_t { kBegin, kObject, kClose };

    const ToolFormatRow* row_;
    Place place_ = Place::kBegin;
    CallObject object_{/*depth=*/1};
    MarkerReader marker_{};
};

// Reads: OBJECT, perhaps more with ; or , between them, and then text without calls.
class ObjectsCallReader {
  public:
    [[nodiscard]] CallStep read(char c, CallBody& body);
    [[nodiscard]] bool is_whole(const CallBody& body) const {
        return is_between_ && body.has_call();
    }

  private:
    bool is_between_ = true;
    CallObject object_{/*depth=*/1};
};

// Reads: [OBJECT, ...] or NAME{...} or NAME[ARGS]{...}.
class MistralCallReader {
  public:
    [[nodiscard]] CallStep read(char c, CallBody& body);
    [[nodiscard]] static bool is_whole(const CallBody&) { return false; }

  private:
    enum class Place : std::uint8_t { kBegin, kName, kArguments, kBetween, kObject };

    CallStep read_name(char c, CallBody& body);
    CallStep read_between(char c, CallBody& body);
    CallStep read_arguments(char c, CallBody& body);

    Place place_ = Place::kBegin;
    bool has_comma_ = true;
    std::string name_{};
    MarkerReader marker_{};
    CallArguments arguments_{};
    CallObject object_{/*depth=*/2};
};

// Reads: (`call_open` NAME `args_open` {...} `args_close` `call_close`)* `close`.
class NamedJsonCallReader {
  public:
    explicit NamedJsonCallReader(const ToolFormatRow& row) : row_(&row) {}
    [[nodiscard]] CallStep read(char c, CallBody& body);
    [[nodiscard]] bool is_whole(const CallBody& body) const;

  private:
    enum class Place : std::uint8_t { kBetween, kName, kArguments, kEnd };

    CallStep read_name(char c);
    CallStep read_arguments(char c, CallBody& body);
    CallStep read_end(char c);

    const ToolFormatRow* row_;
    Place place_ = Place::kBetween;
    SectionReader section_{};
    std::string name_{};
    std::string marker_{};  // the possible start of a marker that ends a call
    CallArguments arguments_{};
};

// Splits a call's name, as the model wrote it, into the name and the id, which may be empty.
// Returns nothing if the text has no valid name.
[[nodiscard]] std::optional<std::pair<std::string, std::string>> call_name_of(
    const ToolFormatRow& row, std::string_view written
);

}  // namespace pitstop::http
