// Takes weights that come from a running trainer or a checkpoint engine: what both dialects' routes
// share.
//
// Without a session each call is an update of its own. Between /begin_weight_update (vLLM:
// /start_weight_update) and /end_weight_update (/finish_weight_update) the calls are buckets of one
// update, which takes effect as a whole at its end, or not at all. A call that the tree could not
// read leaves the session open, one that fails in it ends it: that is what the tree does.
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
#include <map>
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

[[nodiscard]] Task<Result<messages::UpdateReply>> begin_session(Exchange& exchange);
[[nodiscard]] Task<Result<messages::UpdateReply>> commit_session(
    Exchange& exchange, std::string label
);
// Updates in the open session, or as an update of its own.
[[nodiscard]] Task<Result<messages::UpdateReply>> run_update(
    Exchange& exchange, control::DiskUpdate update
);

}  // namespace pitstop::http::weights
