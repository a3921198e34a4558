// Every id has its own type, so that mixing two is a compile error. Ids cost nothing and cross the
// wire as plain integers.
#pragma once

#include <cstdint>
#include <type_traits>

namespace pitstop {

enum class TokenId : std::int32_t {};  // a vocabulary entry
enum class PageId : std::int32_t {};   // a page of KV, the same number on every rank
enum class SlotId : std::int32_t {};  // a running request's index in the workers' per-request state
enum class RequestKey : std::uint64_t {
};                                    // a request inside the tree; the caller's own id is a string
enum class StepId : std::int64_t {};  // one forward pass over a batch, counted from 1
enum class Rank : std::int32_t {};    // a tensor-parallel rank of one replica
enum class ReplicaId : std::int32_t {};  // a data-parallel replica
enum class Epoch : std::int64_t {};  // a weight version; the loaded model is 1, commits are larger
enum class CallId : std::uint64_t {
};  // a control call, chosen by the caller, unique per connection

template <class Id>
requires std::is_enum_v<Id>
[[nodiscard]] constexpr std::underlying_type_t<Id> raw(Id id) {
    return static_cast<std::underlying_type_t<Id>>(id);
}

template <class Id>
requires std::is_enum_v<Id>
[[nodiscard]] constexpr Id next(Id id) { return static_cast<Id>(raw(id) + 1); }

}  // namespace pitstop
