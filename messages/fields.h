// How a message lists its fields. A message is a plain struct with
//
//   static constexpr std::string_view kType = "cancel";            // frame 0
//   static constexpr std::string_view kAbout = "client -> data door: ...";
//   template <class F> void fields(F&& f) { f("rids", rids, "what the field means"); }
//
// and, if some values are not acceptable, `std::optional<std::string> invalid(const Message&)`,
// which returns what is wrong with the message, or nothing. decode() calls `invalid` before any
// code uses the message. The field list alone determines encoding, decoding and docs/protocol.md. A
// struct without kType is a part of other messages.
//
// On the wire, an empty string, array or map and an absent optional are left out. An absent field
// keeps its default, so the default of such a member must be empty.
#pragma once

#include "base/result.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pitstop::messages {

// An enum that is sent by name specializes this with `static constexpr std::array kNames`, in the
// order of its enumerators. Any other enum (an id) is sent as its integer.
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

// A large array. The body has the number of a raw frame (the first is 0). That frame has the
// elements, little-endian, without gaps.
template <class T>
struct RawArray {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values{};
    friend bool operator==(const RawArray&, const RawArray&) = default;
};

// One of several arrays of a message that share one raw frame. The body has the frame's number, the
// byte offset of the first element, and the number of elements. Parts do not overlap: a message
// whose parts have more bytes than its raw frames is refused.
template <class T>
struct RawPart {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values{};
    friend bool operator==(const RawPart&, const RawPart&) = default;
};

}  // namespace pitstop::messages
