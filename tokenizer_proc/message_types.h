// Types of messages, to be tried one after the other.
#pragma once

#include <string_view>

namespace pitstop::tokenizer {

template <class... Messages>
struct MessageTypes {
    static bool has(std::string_view type) { return ((type == Messages::kType) || ...); }
};

}  // namespace pitstop::tokenizer
