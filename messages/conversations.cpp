#include "messages/conversations.h"

#include "messages/checks.h"

#include <fmt/format.h>

namespace pitstop::messages {
namespace {

// In seconds. Below a nanosecond, the resolution of the clock, a time would be none.
constexpr double kIdleMin = 1e-3;

std::optional<std::string> problem_of_id(std::string_view id) {
    if (id.size() <= kConversationBytesMax) return std::nullopt;
    return fmt::format(
        "the conversation's id has {} bytes; at most {} are accepted",
        id.size(),
        kConversationBytesMax
    );
}

}  // namespace

std::optional<std::string> invalid(const Turn& turn) {
    if (turn.conversation.empty()) return "the turn names no conversation";
    if (!turn.after && (turn.offset != 0 || turn.drop_output))
        return "the turn has offset or drop_output, and `after` names no turn to cut";
    if (turn.opens && (turn.after || turn.replace || turn.wants_prompt))
        return "the turn opens its conversation, and so continues and replaces no other";
    return problem_of_id(turn.conversation);
}

std::optional<std::string> invalid(const OpenConversation& message) {
    if (auto problem = invalid_call(message.call)) return problem;
    if (auto problem = problem_of_id(message.id)) return problem;
    const double idle = message.idle_timeout_s.value_or(1);
    if (idle >= kIdleMin && idle <= kConversationIdleMax) return std::nullopt;  // false for a NaN
    return fmt::format(
        "idle_timeout_s is {}; accepted are {} to {} seconds", idle, kIdleMin, kConversationIdleMax
    );
}

std::optional<std::string> invalid(const CloseConversation& message) {
    if (auto problem = invalid_call(message.call)) return problem;
    if (message.id.empty()) return "the conversation's id is empty";
    return problem_of_id(message.id);
}

}  // namespace pitstop::messages
