#include "messages/text_calls.h"

#include "messages/checks.h"
#include "messages/generation.h"

namespace pitstop::messages {

std::optional<std::string> invalid(const Tokenize& message) {
    if (auto problem = invalid_call(message.call)) return problem;
    if (auto problem = invalid_client(message.client)) return problem;
    if (message.text.has_value() == message.ids.has_value())
        return "give exactly one of text and ids";
    return std::nullopt;
}

std::optional<std::string> invalid(const DescribeTokenizer& message) {
    return invalid_call(message.call);
}

std::optional<std::string> invalid(const RenderChat& message) {
    if (auto problem = invalid_call(message.call)) return problem;
    if (auto problem = invalid_client(message.client)) return problem;
    if (message.variables.empty()) return "variables is empty; it is a JSON object";
    return std::nullopt;
}

}  // namespace pitstop::messages
