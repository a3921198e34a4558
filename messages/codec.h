// Encodes and decodes messages. Decoded data is bounded, typed and validated; nothing is executed.
#pragma once

#include "base/result.h"
#include "messages/frames.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::messages {

// What to do with a field that this build does not know: refuse it from a client (it is a typo, or
// requests a feature that does not exist), ignore it from a newer peer.
enum class UnknownFields { kRefuse, kIgnore };

template <class Message>
[[nodiscard]] Frames encode(const Message& message);

// REQUIRES: frames.type == Message::kType.
// Errors: kMalformed (not msgpack, truncated, too deep), kInvalidArgument (names the field and what
// is accepted), kTooLarge.
template <class Message>
[[nodiscard]] Result<Message> decode(const Frames& frames, UnknownFields unknown_fields);

// Read the part of a malformed message that a reply needs: the field `name` as an integer or a
// string, or nothing. They never fail.
[[nodiscard]] std::string peek_string(const Frames& frames, std::string_view name);
[[nodiscard]] std::uint64_t peek_uint(const Frames& frames, std::string_view name);

}  // namespace pitstop::messages
