// The kinds of structs, for programs that write texts from the messages' field lists.
#pragma once

#include <string_view>

namespace pitstop::messages {

// A struct with a field list (fields.h).
template <class T>
concept Fielded = requires(T& value) {
    value.fields([](auto&&...) {});
};

template <class T>
concept Message = Fielded<T> && requires {
    T::kType;
};

// Extracts "PlanRow" from the compiler's spelling of this function:
// "... [with T = pitstop::messages::PlanRow; std::string_view = ...]" (GCC) or
// "... [T = pitstop::messages::PlanRow]".
template <class T>
std::string_view cpp_name() {
    std::string_view text = __PRETTY_FUNCTION__;
    text.remove_prefix(text.find("T = ") + 4);
    text = text.substr(0, text.find_first_of(";]"));
    return text.substr(text.rfind(':') + 1);
}

}  // namespace pitstop::messages
