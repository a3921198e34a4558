// Reads buckets of shared memory, announced on a socket of the sender's: this rank connects to the
// one of its device. Who speaks first decides the language: one frame is a pickle of
// checkpoint-engine's (checkpoint_engine.h), more are pitstop's own (push_session.h).
#pragma once

#include "tp_worker/sources/source.h"

#include <chrono>
#include <span>
#include <string>
#include <utility>

namespace pitstop::tp_worker {

// Errors: kNotFound (no handle for this rank's device), kUnavailable (no sender, or it died),
// kDeadlineExceeded (it is silent), kAborted (it gave up), and whatever is wrong with what it sent.
Result<> deliver_ipc(const SourceArgs& args);

// Tells whoever sends to this rank that the stage could not begin. Returns `why`.
Result<> decline_ipc(const SourceArgs& args, const Error& why);

// A sender may take so long to hear that nothing comes of it, however much it still has to say.
inline constexpr std::chrono::seconds kFarewellMax{2};

// Names every problem of a failed step for the sender, in valid UTF-8 that is not empty.
[[nodiscard]] std::string text_of(const WeightStage& stage, const Error& error);

// Says where a tensor lies in the sender's buffer: [begin, end) in bytes, and its name.
struct Placed {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::string_view name{};
};
// Errors: kInvalidArgument, one reaches out of the buffer, or two overlap.
Result<> check_places(std::vector<Placed> places, std::int64_t buffer_bytes);

}  // namespace pitstop::tp_worker
