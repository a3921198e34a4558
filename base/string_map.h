// Hash maps with names as keys, which are found by a std::string_view without a copy. For lookups
// of names that share long beginnings, as weights' names do: an ordered map compares such a
// beginning at every step.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace pitstop {

struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
        return std::hash<std::string_view>{}(text);
    }
};

template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

}  // namespace pitstop
