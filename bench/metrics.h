// Sums up a drive's notes.
//
//   time to first token   from the time when a request was due to its first chunk. In an open loop
//                         a request is due at its planned arrival, so that the delay of a sender
//                         that falls behind counts.
//   inter-token gap       the time between two chunks of a request, divided by the number of tokens
//                         of the second chunk
//   largest gap           the longest time between two chunks of a request, undivided
//   decode rate           tokens per second while every request was decoding: after all requests
//                         have their first token, and before any ends. None if there is no such
//                         time.
#pragma once

#include "bench/drive.h"
#include "bench/percentiles.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace pitstop::bench {

struct DecodeWindow {
    double seconds = 0;
    std::int64_t tokens = 0;
    double context_mean = 0;  // tokens of context per request, half-way through
};

struct Metrics {
    double seconds = 0;  // from the begin to the end of the last request
    std::int64_t num_ok = 0;
    std::map<std::string, std::int64_t> errors{};  // error -> number of requests
    // of requests that ended well; the same holds for all fields below
    std::int64_t prompt_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int64_t output_tokens = 0;
    Summary first_token_ms{};
    Summary gap_ms{};
    Summary gap_largest_ms{};  // per request
    Summary request_ms{};      // from the due time to the end
    std::optional<DecodeWindow> decode{};
};

[[nodiscard]] Metrics metrics_of(const DriveResult& result);

}  // namespace pitstop::bench
