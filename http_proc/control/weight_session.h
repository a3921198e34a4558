// The shared part of both dialects' routes for weights from a running trainer or a
// checkpoint engine.
//
// Between /begin_weight_update (vLLM: /start_weight_update) and /end_weight_update
// (/finish_weight_update), calls are buckets of one update. It takes effect as a whole at its end,
// or not at all. The answer to the first call has the session's number. Later calls may name it;
// most trainers' calls do not. Only the tree knows sessions, so any front end can continue what
// another began. A call without a number is a bucket of the session that was begun over HTTP. If
// that session was lost, the call is refused; if there is none, the call is an update of its own.
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

// The time for a group's members to meet.
inline constexpr std::chrono::minutes kGroupTimeout{5};

// ---- parsing bodies ----

// Reads the tensors of three lists: these two and `shapes`. Errors: kInvalidArgument,
// naming the list.
[[nodiscard]] Result<std::vector<messages::TensorInfo>> read_tensors(
    FieldReader& fields, std::string_view names_field, std::string_view dtypes_field
);
// Maps a device's uuid to its address. `object` is null if the body has none, which is an error.
[[nodiscard]] Result<std::map<std::string, std::string>> read_handles(const nlohmann::json* object);
[[nodiscard]] Result<messages::RankPayload> payload_of(const std::string& base64);

// ---- calls to the tree ----

// Returns whether the session is still open after the update, one of its buckets.
[[nodiscard]] bool is_open(const messages::UpdateReply& reply);

// The body's fields that begin a session.
struct Beginning {
    bool takes_over = false;
    std::chrono::milliseconds idle_timeout{10'000};
};
[[nodiscard]] Beginning read_beginning(FieldReader& fields);
// Reads the session number of a call, or nothing.
[[nodiscard]] std::optional<std::uint64_t> read_session(Exchange& exchange, FieldReader& fields);

[[nodiscard]] Task<Result<messages::UpdateReply>> begin_session(
    Exchange& exchange, Beginning beginning
);
[[nodiscard]] Task<Result<messages::UpdateReply>> commit_session(
    Exchange& exchange, std::optional<std::uint64_t> session, std::string label
);
// Drops the session; without a number, the session that was begun over HTTP, if one is open.
[[nodiscard]] Task<Result<messages::UpdateReply>> drop_session(
    Exchange& exchange, std::optional<std::uint64_t> session
);
// Adds a bucket to the session, or makes an update of its own if the call names no session and
// none is open.
[[nodiscard]] Task<Result<messages::UpdateReply>> run_update(
    Exchange& exchange, std::optional<std::uint64_t> session, control::DiskUpdate update
);

}  // namespace pitstop::http::weights
