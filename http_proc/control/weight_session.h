// Takes weights that come from a running trainer or a checkpoint engine: what both dialects' routes
// share.
//
// Between /begin_weight_update (vLLM: /start_weight_update) and /end_weight_update
// (/finish_weight_update) the calls are buckets of one update, which takes effect as a whole at its
// end, or not at all. The begin's answer has the session's number; a call may name it, and most
// trainers' do not. The tree alone knows sessions, so any front end goes on with what another has
// begun: a call without a number is a bucket of the session that was begun over HTTP; it is refused
// where that one was lost; and without one it is an update of its own.
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

// A group's members have this long to meet.
inline constexpr std::chrono::minutes kGroupTimeout{5};

// ---- what bodies say ----

// Reads the tensors of three lists: these two and `shapes`. Errors: kInvalidArgument, naming the
// list.
[[nodiscard]] Result<std::vector<messages::TensorInfo>> read_tensors(
    FieldReader& fields, std::string_view names_field, std::string_view dtypes_field
);
// Maps a device's uuid to its address. `object` is null where the body has none, which is an error.
[[nodiscard]] Result<std::map<std::string, std::string>> read_handles(const nlohmann::json* object);
[[nodiscard]] Result<messages::RankPayload> payload_of(const std::string& base64);

// ---- what is done ----

// Tells whether a session is open after the update, which was a bucket of it.
[[nodiscard]] bool is_open(const messages::UpdateReply& reply);

// How a session begins, as the request's body states it.
struct Beginning {
    bool takes_over = false;
    std::chrono::milliseconds idle_timeout{10'000};
};
[[nodiscard]] Beginning read_beginning(FieldReader& fields);
// Reads the number of the session that a call names; nothing: it names none.
[[nodiscard]] std::optional<std::uint64_t> read_session(FieldReader& fields);

[[nodiscard]] Task<Result<messages::UpdateReply>> begin_session(
    Exchange& exchange, Beginning beginning
);
[[nodiscard]] Task<Result<messages::UpdateReply>> commit_session(
    Exchange& exchange, std::optional<std::uint64_t> session, std::string label
);
// Without a number: of the session that was begun over HTTP, if one is open.
[[nodiscard]] Task<Result<messages::UpdateReply>> drop_session(
    Exchange& exchange, std::optional<std::uint64_t> session
);
// Fills the session, or makes an update of its own where it names none and none is open.
[[nodiscard]] Task<Result<messages::UpdateReply>> run_update(
    Exchange& exchange, std::optional<std::uint64_t> session, control::DiskUpdate update
);

}  // namespace pitstop::http::weights
