#include "http_proc/format/forced_call.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {

std::string ForcedCall::opening(ToolFormat format) const {
    using Json = nlohmann::json;
    const std::string name =
        Json(function).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
    switch (format) {
        case ToolFormat::kHermes:
            if (function.empty()) return "<tool_call>\n{\"name\":";
            return fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\":", name);
        case ToolFormat::kLlama3:
            if (function.empty()) return "{\"name\":";
            return fmt::format("{{\"name\": {}, \"parameters\":", name);
        case ToolFormat::kMistral:
            break;
    }
    if (function.empty()) return "[TOOL_CALLS]";
    return fmt::format("[TOOL_CALLS][{{\"name\": {}, \"arguments\":", name);
}

Result<> check_forced_call(
    const std::optional<ForcedCall>& forced, const std::optional<ToolFormat>& format
) {
    if (!forced || format) return Ok{};
    return make_error(
        ErrorCode::kInvalidArgument,
        "tool_choice forces a call, but the server knows no format of calls: start it with "
        "--tool-call-parser, or use auto or none"
    );
}

}  // namespace pitstop::http
