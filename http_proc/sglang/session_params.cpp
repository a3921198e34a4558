#include "http_proc/sglang/session_params.h"

#include "http_proc/format/json_body.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace pitstop::http {

using Json = nlohmann::json;

Result<> read_session_params(const Json& value, messages::Generate& prompt) {
    FieldReader fields(value, "session_params");
    messages::Turn turn;
    std::string rid;
    fields.read("id", turn.conversation);
    fields.read("rid", rid);
    fields.read("offset", turn.offset);
    fields.read("replace", turn.replace);
    fields.read("drop_previous_output", turn.drop_output);
    if (fields.error()) return *fields.error();
    for (const auto& [name, member] : value.items()) {
        constexpr std::array kNames{"id", "rid", "offset", "replace", "drop_previous_output"};
        if (std::ranges::find(kNames, name) != kNames.end()) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "session_params has {}; accepted are id, rid, offset, replace and drop_previous_output",
            Json(name).dump()
        );
    }
    if (turn.conversation.empty()) return Ok{};
    if (!rid.empty()) turn.after = std::move(rid);
    if (!turn.after) {  // the first turn has nothing to cut, and SGLang cuts nothing
        turn.offset = 0;
        turn.drop_output = false;
    }
    prompt.turn = std::move(turn);
    return Ok{};
}

}  // namespace pitstop::http
