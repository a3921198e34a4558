// Does to the tree what both dialects' control routes ask: one state machine, the scheduler's, is
// behind all of them. A reply that is not ok comes back as an Error with its code and its words.
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

// Calls that may have to wait for requests, or that move weights, get this long. Clients give up
// earlier by themselves.
inline constexpr std::chrono::minutes kTimeout{20};

// Returns the reply, or the error it is.
template <class Reply>
[[nodiscard]] Result<Reply> checked(Result<Reply> reply) {
    if (!reply || reply->ok) return reply;
    return reply->verdict.error();
}

[[nodiscard]] Task<Result<messages::StatusReply>> status(Exchange& exchange);
[[nodiscard]] bool is_paused(const messages::StatusReply& status);
// Tells whether some memory is released.
[[nodiscard]] bool is_released(const messages::StatusReply& status);

// With kAbort the requests that were on their way to the schedulers end, too: they would wait for
// the continue, and a caller that collects its answers first would never send it.
[[nodiscard]] Task<Result<messages::PauseReply>> pause(
    Exchange& exchange, messages::PauseMode mode, double max_pause_s = 0
);
[[nodiscard]] Task<Result<messages::ContinueReply>> go_on(Exchange& exchange);
// Adds the collected update that a call has had take effect, if it has, as `update`.
void add_update(
    nlohmann::ordered_json& answer, const std::optional<messages::CollectedVersion>& update
);
// With a `wait`, it waits up to so long until no request holds pages.
[[nodiscard]] Task<Result<messages::FlushReply>> flush(
    Exchange& exchange, std::chrono::milliseconds wait = std::chrono::milliseconds(0)
);

struct Aborting {
    std::vector<std::string> names{};  // names requests, batches, answers; none is empty
    bool all = false;                  // aborts every front end's, whatever `names` has
    std::string message = "Aborted";
};
// Ends what this server has read before; of what others have read, what has reached the tree.
// Comes back when every final output has been sent.
[[nodiscard]] Task<Result<messages::AbortReply>> abort(Exchange& exchange, Aborting aborting);
[[nodiscard]] Task<Result<messages::AbortReply>> abort_all(Exchange& exchange);
[[nodiscard]] std::int64_t num_aborted(const messages::AbortReply& reply);

[[nodiscard]] Task<Result<messages::MemoryReply>> release(
    Exchange& exchange, std::vector<messages::MemoryTag> tags, bool keep_weights
);
[[nodiscard]] Task<Result<messages::MemoryReply>> resume(
    Exchange& exchange, std::vector<messages::MemoryTag> tags
);

// Describes an update from a checkpoint directory, or from elsewhere.
struct DiskUpdate {
    std::string path{};
    std::optional<messages::WeightSource> source{};  // in place of the path
    bool partial = false;                            // only some tensors come
    std::string label{};                             // empty: it has none
    bool clears_cache = true;
    bool aborts_all = false;  // first
    // Its caller names no session: it is a bucket of the one that was begun over HTTP, if one is.
    bool is_unnamed = false;
    // Where it is absent, what a pause has made of the requests stays so; without a pause they run
    // out first.
    std::optional<messages::KvPolicy> kv_policy{};
    messages::UpdateMode mode = messages::UpdateMode::kStaged;
    std::string digest{};  // the digest that must result; empty: any
};
// Nothing is updated if the cache could not be cleared as asked.
[[nodiscard]] Task<Result<messages::UpdateReply>> update_from_disk(
    Exchange& exchange, DiskUpdate update
);

// Returns the tags of these names; cuda_graph (and what `also` says) stands for nothing here.
// Errors: kInvalidArgument, naming the one that is not known.
[[nodiscard]] Result<std::vector<messages::MemoryTag>> tags_named(
    const std::vector<std::string>& names, std::string_view also
);

}  // namespace pitstop::http::control
