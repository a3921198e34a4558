// Checks of a pickle's values: which arguments the known constructors have, and the shapes of
// records.
#pragma once

#include "base/result.h"
#include "pickle/value.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::pickle {

inline constexpr std::size_t kNcclIdBytes = 128;

// Returns whether REDUCE may name the global.
[[nodiscard]] bool is_constructor(Global global);
// Returns what is wrong with a constructor's arguments, or nothing. REQUIRES:
// is_constructor(global).
[[nodiscard]] std::optional<std::string> flaw_of_arguments(
    const Document& document, Global global, const Node& arguments
);

// Takes O(n log n) comparisons of a dict's n keys. Errors: kMalformed: a dict that has a key twice.
Result<> check_keys(const Document& document);

// Returns the beginning of a text, with its unprintable bytes as \x01.
[[nodiscard]] std::string shown(std::string_view text);

// Returns whether these are the arguments of _ctypes._unpickle(ncclUniqueId, ({}, 128 bytes)).
[[nodiscard]] bool is_nccl_id(const Document& document, const Node& arguments);

// Returns whether this is the persistent id of a storage: ("storage", class, key, location, number
// of elements). Source: torch.serialization.
[[nodiscard]] bool is_saved_storage(const Document& document, const Node& id);

}  // namespace pitstop::pickle
