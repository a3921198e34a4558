// Sends a workload to a tree as clients do, and records each chunk's arrival.
//
// Thread: a caller's thread sends; each client's own thread records. An event costs 16 bytes and no
// lock, so the driver hardly affects the result.
#pragma once

#include "base/time.h"
#include "bench/workload.h"
#include "client/client.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pitstop::bench {

struct DriveArgs {
    std::span<const std::unique_ptr<Client>> clients{};  // request i goes through client i % size
    const Workload* workload = nullptr;
    messages::Generate pattern{};      // everything but rid, prompt and max_new_tokens
    std::int64_t concurrency_max = 0;  // most requests open at once; 0: no limit
    std::chrono::milliseconds request_timeout{600'000};
};

// Notes a chunk of a request's output. Times are in nanoseconds from the drive's begin.
struct ChunkEvent {
    std::int64_t at_ns = 0;
    std::uint32_t request = 0;
    std::uint32_t tokens = 0;
};

struct RequestRecord {
    // when the request should have been sent: waiting at the sender counts as latency
    std::int64_t due_ns = 0;
    std::int64_t end_ns = 0;
    std::int64_t prompt_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int64_t output_tokens = 0;
    std::string error{};  // empty: the request ended normally
};

struct DriveResult {
    TimePoint begin{};
    std::vector<RequestRecord> requests{};  // in the workload's order
    std::vector<ChunkEvent> chunks{};       // in order of time
};

// Returns when the last request has ended.
[[nodiscard]] DriveResult drive(const DriveArgs& args);

}  // namespace pitstop::bench
