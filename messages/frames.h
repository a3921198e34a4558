// A message on the wire. Frame 0 is its type's name, and frame 1 a msgpack map keyed by field name.
// Raw frames of large arrays follow (little-endian elements, never copied through msgpack).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pitstop::messages {

// The protocol's version, which every Hello has. A peer with another version is refused.
inline constexpr int kProtocolVersion = 2;

// A message over its limit is refused before it is parsed. The doors' sockets have tighter limits
// (bus/limits.h).
inline constexpr std::size_t kTypeBytesMax = 64;
inline constexpr std::size_t kBodyBytesMax = std::size_t{64} << 20;
inline constexpr std::size_t kRawBytesMax = std::size_t{1} << 30;
inline constexpr std::size_t kRawFramesMax = 64;
inline constexpr int kDepthMax = 16;  // of nested values in a body, such as maps in arrays in maps

struct Frames {
    std::string type{};
    std::string body{};
    std::vector<std::string> raw{};
};

}  // namespace pitstop::messages
