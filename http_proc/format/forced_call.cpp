#include "http_proc/format/forced_call.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {

namespace {

void replace(std::string& text, std::string_view what, std::string_view by) {
    const std::size_t place = text.find(what);
    if (place != std::string::npos) text.replace(place, what.size(), by);
}

}  // namespace

std::string ForcedCall::opening(ToolFormat format) const {
    using Json = nlohmann::json;
    const ToolFormatRow& row = row_of(format);
    if (function.empty()) return std::string(row.begins_any);
    std::string opening(row.begins_named);
    replace(
        opening,
        "{q}",
        Json(function).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace)
    );
    replace(opening, "{}", function);
    return opening;
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
