// Encodes and decodes messages. Decoded data is bounded, typed and validated.
#pragma once

#include "base/result.h"
#include "messages/frames.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::messages {

// The treatment of a field that this build does not know. A client's field is refused: the field is
// a typo, or asks for a feature that does not exist. A newer peer's field is ignored.
enum class UnknownFields { kRefuse, kIgnore };

template <class Message>
[[nodiscard]] Frames encode(const Message& message);

// REQUIRES: frames.type == Message::kType.
// Errors: kMalformed (not msgpack, truncated, too deep), kInvalidArgument (the text names the field
// and what is accepted), kTooLarge.
template <class Message>
[[nodiscard]] Result<Message> decode(const Frames& frames, UnknownFields unknown_fields);

// Read a string or integer field of a message that may be malformed, for its refusal. Return empty
// or 0 if that fails.
[[nodiscard]] std::string peek_string(const Frames& frames, std::string_view name);
[[nodiscard]] std::uint64_t peek_uint(const Frames& frames, std::string_view name);
// Reads the string field `name` of the struct in field `parent`.
[[nodiscard]] std::string peek_string(
    const Frames& frames, std::string_view parent, std::string_view name
);

}  // namespace pitstop::messages
