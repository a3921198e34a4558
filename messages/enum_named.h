// Finds an enumerator by its name on the wire: the inverse of name_of().
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
