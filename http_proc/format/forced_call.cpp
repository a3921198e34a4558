#include "http_proc/format/forced_call.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {

namespace {

constexpr std::string_view kQuotedName = "{q}";
constexpr std::string_view kName = "{}";

}  // namespace

std::string ForcedCall::opening(ToolFormat format) const {
    using Json = nlohmann::json;
    const ToolFormatRow& row = row_of(format);
    if (function.empty()) return std::string(row.begins_any);
    std::string opening(row.begins_named);
    // The opening has one of the two placeholders, once. Only the first match is replaced, because
    // the name may contain a placeholder's text.
    const std::size_t quoted = opening.find(kQuotedName);
    if (quoted == std::string::npos)
        return opening.replace(opening.find(kName), kName.size(), function);
    return opening.replace(
        quoted,
        kQuotedName.size(),
        Json(function).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace)
    );
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
