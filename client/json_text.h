// Writes messages as JSON, by their field lists, for people and for jq. Empty members are omitted,
// as on the wire.
#pragma once

#include "messages/fields.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace pitstop::json_text {

template <class T>
concept Fielded = requires(T& value) {
    value.fields([](auto&&...) {});
};

inline bool is_left_out(const std::string& value) { return value.empty(); }
template <class T>
bool is_left_out(const std::vector<T>& value) {
    return value.empty();
}
template <class T>
bool is_left_out(const std::optional<T>& value) {
    return !value;
}
template <class T>
bool is_left_out(const messages::RawPart<T>& value) {
    return value.values.empty();
}
template <class T>
bool is_left_out(const T&) {
    return false;
}

template <class T>
nlohmann::ordered_json to_json(const std::optional<T>& value);
template <class T>
nlohmann::ordered_json to_json(const std::vector<T>& values);
template <class T>
nlohmann::ordered_json to_json(const messages::RawPart<T>& part) {
    return to_json(part.values);
}

template <class T>
nlohmann::ordered_json to_json(const T& value) {
    if constexpr (messages::NamedEnum<T>) {
        return std::string(name_of(value));
    } else if constexpr (std::is_enum_v<T>) {
        return static_cast<std::underlying_type_t<T>>(value);
    } else if constexpr (Fielded<T>) {
        auto object = nlohmann::ordered_json::object();
        const_cast<T&>(value).fields([&](std::string_view name, auto& field, std::string_view) {
            if (!is_left_out(field)) object[std::string(name)] = to_json(field);
        });
        return object;
    } else {
        return value;
    }
}

template <class T>
nlohmann::ordered_json to_json(const std::optional<T>& value) {
    return value ? to_json(*value) : nlohmann::ordered_json{};
}

template <class T>
nlohmann::ordered_json to_json(const std::vector<T>& values) {
    auto array = nlohmann::ordered_json::array();
    for (const T& value : values) array.push_back(to_json(value));
    return array;
}

}  // namespace pitstop::json_text
