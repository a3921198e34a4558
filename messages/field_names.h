// The names of a message's fields, for code that derives lists from them.
#pragma once

#include <string_view>
#include <vector>

namespace pitstop::messages {

// Returns the names of the message's fields, in its order.
template <class Message>
[[nodiscard]] std::vector<std::string_view> field_names() {
    std::vector<std::string_view> names;
    Message message;
    message.fields([&](std::string_view name, auto&, std::string_view) { names.push_back(name); });
    return names;
}

}  // namespace pitstop::messages
