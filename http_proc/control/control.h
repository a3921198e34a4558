// Sends the calls of both dialects' control routes to the tree, where one state machine of the
// scheduler handles all of them. A reply that is not ok becomes an Error with its code and message.
//
// Thread: the server's loop.
#pragma once

#include "base/result.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"
#include "messages/control.h"
#include "messages/memory.h"
#include "messages/status.h"
#include "messages/weights.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::http::control {

// Timeout of calls that may wait for requests, or that move weights. Clients usually give up
// earlier.
inline constexpr std::chrono::minutes kTimeout{20};

// Returns the reply, or its error.
template <class Reply>
[[nodiscard]] Result<Reply> checked(Result<Reply> reply) {
    if (!reply || reply->ok) return reply;
    return reply->verdict.error();
}

[[nodiscard]] Task<Result<messages::StatusReply>> status(Exchange& exchange);
[[nodiscard]] bool is_paused(const messages::StatusReply& status);
// Returns whether some memory is released.
[[nodiscard]] bool is_released(const messages::StatusReply& status);

// With kAbort, also ends requests that were on their way to the schedulers. Otherwise such requests
// would wait for the continue; a caller that first waits for all answers would never send it.
[[nodiscard]] Task<Result<messages::PauseReply>> pause(
    Exchange& exchange, messages::PauseMode mode, double max_pause_s = 0
);
[[nodiscard]] Task<Result<messages::ContinueReply>> go_on(Exchange& exchange);
// Adds `update`, the collected update that the call committed, if there is one.
void add_update(
    nlohmann::ordered_json& answer, const std::optional<messages::CollectedVersion>& update
);
// Clears the cache, and the pages of running requests. These requests are queued again.
[[nodiscard]] Task<Result<messages::FlushReply>> flush_with_running(Exchange& exchange);
// Waits for at most `wait` until no request holds pages.
[[nodiscard]] Task<Result<messages::FlushReply>> flush(
    Exchange& exchange, std::chrono::milliseconds wait = std::chrono::milliseconds(0)
);

struct Aborting {
    std::vector<std::string> names{};  // ids of requests, batches or answers; none is empty
    bool all = false;  // aborts the requests of every front end, whatever `names` has
    std::string message = "Aborted";
};
// Ends the requests that this server has read so far, and those of other servers that have reached
// the tree. Returns when every final output has been sent.
[[nodiscard]] Task<Result<messages::AbortReply>> abort(Exchange& exchange, Aborting aborting);
[[nodiscard]] Task<Result<messages::AbortReply>> abort_all(Exchange& exchange);
[[nodiscard]] std::int64_t num_aborted(const messages::AbortReply& reply);

[[nodiscard]] Task<Result<messages::MemoryReply>> release(
    Exchange& exchange, std::vector<messages::MemoryTag> tags, bool keep_weights
);
[[nodiscard]] Task<Result<messages::MemoryReply>> resume(
    Exchange& exchange, std::vector<messages::MemoryTag> tags
);

// An update from a checkpoint directory or another source.
struct DiskUpdate {
    std::string path{};
    std::optional<messages::WeightSource> source{};  // replaces the path
    bool partial = false;                            // has only some of the tensors
    std::string label{};                             // empty: no label
    bool clears_cache = true;
    bool aborts_all = false;  // before the update takes effect
    // The caller names no session: the update is a bucket of the session that was begun over HTTP,
    // if such a session is open.
    bool is_unnamed = false;
    // Absent: requests stay as a pause left them; without a pause they finish first.
    std::optional<messages::KvPolicy> kv_policy{};
    messages::UpdateMode mode = messages::UpdateMode::kStaged;
    std::string digest{};  // the digest that the new version must have; empty: any
};
// Updates nothing if the call asks to clear the cache and a pause keeps it from being cleared.
[[nodiscard]] Task<Result<messages::UpdateReply>> update_from_disk(
    Exchange& exchange, DiskUpdate update
);
// A relative path is made absolute here, because the workers may have another working directory.
[[nodiscard]] std::string absolute_path(const std::string& path);

// Returns the tags with these names. The name cuda_graph and the one in `also` are accepted and
// ignored. Errors: kInvalidArgument, naming the unknown tag.
[[nodiscard]] Result<std::vector<messages::MemoryTag>> tags_named(
    const std::vector<std::string>& names, std::string_view also
);

}  // namespace pitstop::http::control
