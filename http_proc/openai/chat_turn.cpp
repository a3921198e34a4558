#include "http_proc/openai/chat_turn.h"

namespace pitstop::http {

Result<AssistantTurn::Args> turn_of_chat(const OutputFormats& formats, const OpenAiChat& call) {
    RETURN_IF_ERROR(check_forced_call(call.forced_call, formats.calls));
    RETURN_IF_ERROR(check_thinking(call.thinking, formats.thinking));
    AssistantTurn::Args turn =
        turn_args(formats, call.has_tools, call.takes_one_call, call.schemas, call.thinking);
    ASSIGN_OR_RETURN(
        turn.held_calls,
        call_grammar(formats.calls, call.tools, call.forced_call, call.takes_one_call)
    );
    return turn;
}

}  // namespace pitstop::http
