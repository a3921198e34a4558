// Says how a message lists its fields. A message is a plain struct with
//
//   static constexpr std::string_view kType = "cancel";            // frame 0
//   static constexpr std::string_view kAbout = "client -> data door: ...";
//   template <class F> void fields(F&& f) { f("rids", rids, "what the field means"); }
//
// and, where not every value is acceptable, `std::optional<std::string> invalid(const Message&)`,
// what is wrong with it or nothing, run by decode() before anybody uses it. The one list makes
// encoding, decoding and docs/protocol.md. A struct without kType is a part of other messages.
//
// On the wire an empty string, array or map and an absent optional are left out; so every such
// member's default must be empty, and an absent field keeps its default.
#pragma once

#include "base/result.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pitstop::messages {

// An enum that crosses the wire by name specializes this with `static constexpr std::array kNames`,
// in the order of its enumerators. An enum without it (an id) crosses as its integer.
template <class E>
struct EnumNames {};

template <>
struct EnumNames<ErrorCode> {
    static constexpr auto kNames = kErrorCodeNames;
};

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
    EnumNames<E>::kNames;
};

template <NamedEnum E>
[[nodiscard]] constexpr std::string_view name_of(E value) {
    return EnumNames<E>::kNames[static_cast<std::size_t>(value)];
}

// A large array has its frame number in the body (the first raw frame is 0), and in that frame its
// elements, little-endian, back to back.
template <class T>
struct RawArray {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values{};
    friend bool operator==(const RawArray&, const RawArray&) = default;
};

// One of many arrays of a message, which share one raw frame: in the body there are the frame's
// number, the byte of it at which the elements begin, and how many they are. Parts do not overlap:
// a message whose parts have more bytes than its raw frames is refused.
template <class T>
struct RawPart {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values{};
    friend bool operator==(const RawPart&, const RawPart&) = default;
};

}  // namespace pitstop::messages
