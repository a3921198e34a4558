#include "http_proc/format/forced_call.h"

#include <nlohmann/json.hpp>

#include <iterator>

namespace pitstop::http {

namespace {

constexpr std::string_view kQuotedName = "{q}";
constexpr std::string_view kName = "{}";
constexpr std::string_view kNumber = "{n}";

}  // namespace

std::int64_t num_calls_in(std::string_view variables) {
    using Json = nlohmann::json;
    const Json json =
        Json::parse(variables.begin(), variables.end(), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return 0;
    const Json messages = json.value("messages", Json());
    if (!messages.is_array()) return 0;
    std::int64_t num = 0;
    for (const Json& message : messages) {
        if (!message.is_object()) continue;
        const auto calls = message.find("tool_calls");
        if (calls != message.end() && calls->is_array()) num += std::ssize(*calls);
    }
    return num;
}

std::string ForcedCall::opening(ToolFormat format) const {
    using Json = nlohmann::json;
    const ToolFormatRow& row = row_of(format);
    if (function.empty()) return std::string(row.begins_any);
    std::string opening(row.begins_named);
    // The name is replaced last, because it may contain any placeholder's text.
    if (const std::size_t number = opening.find(kNumber); number != std::string::npos)
        opening.replace(number, kNumber.size(), std::to_string(num_before));
    // The opening has one of the two placeholders of the name, once. Only the first match is
    // replaced.
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
