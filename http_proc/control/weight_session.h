// The part that both dialects share of their routes for weights from a running trainer or a
// checkpoint engine.
//
// Calls between /begin_weight_update (vLLM: /start_weight_update) and /end_weight_update
// (/finish_weight_update) are buckets of one update. The update takes effect as a whole at the end,
// or not at all. The answer to the first call has the session's number, which later calls may name;
// most trainers do not. Only the tree knows sessions, so any front end can continue what another
// began. A call without a number is a bucket of the session that was begun over HTTP. If that
// session was lost, the call is refused; if none was begun, the call is a whole update.
//
// Thread: the server's loop.
#pragma once

#include "base/result.h"
#include "http_proc/control/control.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"
#include "messages/weights.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http::weights {

// The limit of the time in which all members of a group must meet.
inline constexpr std::chrono::minutes kGroupTimeout{5};

// ---- parsing bodies ----

// Reads tensors from three lists: the two named fields and `shapes`. Errors: kInvalidArgument,
// naming the list.
[[nodiscard]] Result<std::vector<messages::TensorInfo>> read_tensors(
    FieldReader& fields, std::string_view names_field, std::string_view dtypes_field
);
// Returns each device's address by its uuid. Errors: `object` is null (absent), or malformed.
[[nodiscard]] Result<std::map<std::string, std::string>> read_handles(const nlohmann::json* object);
[[nodiscard]] Result<messages::RankPayload> payload_of(const std::string& base64);

// ---- calls to the tree ----

// Returns whether the session stays open after the update, which is one of its buckets.
[[nodiscard]] bool is_open(const messages::UpdateReply& reply);

// The body's fields that begin a session.
struct Beginning {
    bool takes_over = false;
    std::chrono::milliseconds idle_timeout{10'000};
};
[[nodiscard]] Beginning read_beginning(FieldReader& fields);
// Reads the session number of a call; nothing if it has none.
[[nodiscard]] std::optional<std::uint64_t> read_session(Exchange& exchange, FieldReader& fields);

[[nodiscard]] Task<Result<messages::UpdateReply>> begin_session(
    Exchange& exchange, Beginning beginning
);
[[nodiscard]] Task<Result<messages::UpdateReply>> commit_session(
    Exchange& exchange, std::optional<std::uint64_t> session, std::string label
);
// Drops the session; without a number, the session that was begun over HTTP, if it is open.
[[nodiscard]] Task<Result<messages::UpdateReply>> drop_session(
    Exchange& exchange, std::optional<std::uint64_t> session
);
// Adds a bucket to the session. If the call names no session and none is open, makes a whole update
// instead.
[[nodiscard]] Task<Result<messages::UpdateReply>> run_update(
    Exchange& exchange, std::optional<std::uint64_t> session, control::DiskUpdate update
);

}  // namespace pitstop::http::weights
