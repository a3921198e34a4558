// Reads buckets of shared memory, announced on a socket of the sender's: this rank connects to the
// one for its device. The first message decides the protocol: one frame is a pickle of
// checkpoint-engine's (checkpoint_engine.h), several are pitstop's own (push_session.h).
#pragma once

#include "tp_worker/sources/source.h"

#include <chrono>
#include <span>
#include <string>
#include <utility>

namespace pitstop::tp_worker {

// Errors: kNotFound (no handle for this rank's device), kUnavailable (no sender, or it died),
// kDeadlineExceeded (it is silent), kAborted (it gave up), and any fault of the sent data.
Result<> deliver_ipc(const SourceArgs& args);

// Tells the sender for this rank that the stage could not begin. Returns `why`.
Result<> decline_ipc(const SourceArgs& args, const Error& why);

// After a failed update, the worker answers a sender's messages with the error for at
// most this long.
inline constexpr std::chrono::seconds kFarewellMax{2};

// Returns every problem of a failed stage for the sender, in valid UTF-8 that is not empty.
[[nodiscard]] std::string text_of(const WeightStage& stage, const Error& error);

// A tensor's place in the sender's buffer, [begin, end) in bytes, and its name.
struct Placed {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::string_view name{};
};
// Errors: kInvalidArgument if a tensor extends beyond the buffer, or two overlap.
Result<> check_places(std::vector<Placed> places, std::int64_t buffer_bytes);

}  // namespace pitstop::tp_worker
