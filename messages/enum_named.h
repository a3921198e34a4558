// Finds an enumerator by the name that it crosses the wire with: what name_of() says, read again.
#pragma once

#include "messages/fields.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace pitstop::messages {

template <NamedEnum E>
[[nodiscard]] constexpr std::optional<E> enum_named(std::string_view name) {
    constexpr const auto& kNames = EnumNames<E>::kNames;
    const auto place = std::ranges::find(kNames, name);
    if (place == kNames.end()) return std::nullopt;
    return static_cast<E>(place - kNames.begin());
}

}  // namespace pitstop::messages
