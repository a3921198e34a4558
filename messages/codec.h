// Encodes and decodes messages. Decoded data is bounded, typed and validated; nothing is executed.
#pragma once

#include "base/result.h"
#include "messages/frames.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::messages {

// The treatment of a field that this build does not know. A client's field is refused: it is a
// typo, or requests a feature that does not exist. A newer peer's field is ignored.
enum class UnknownFields { kRefuse, kIgnore };

template <class Message>
[[nodiscard]] Frames encode(const Message& message);

// REQUIRES: frames.type == Message::kType.
// Errors: kMalformed (not msgpack, truncated, too deep), kInvalidArgument (names the field and what
// is accepted), kTooLarge.
template <class Message>
[[nodiscard]] Result<Message> decode(const Frames& frames, UnknownFields unknown_fields);

// Each reads the part of a malformed message that a reply needs: the field `name`, as an integer or
// a string, or nothing. Never fails.
[[nodiscard]] std::string peek_string(const Frames& frames, std::string_view name);
[[nodiscard]] std::uint64_t peek_uint(const Frames& frames, std::string_view name);

}  // namespace pitstop::messages
