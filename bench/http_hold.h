// Keeps many streams of a live tree open at once for a while, and checks each: all events have the
// stream's id, and the text and tokens equal the output of the same prompt alone. Another thread
// calls the routes that trainers and routers poll, and sometimes pauses.
//
// Thread:  the caller's for all streams, and one for the control routes.
// Bounded: a stream holds its output and the event it is in.
#pragma once

#include "base/result.h"
#include "bench/http_socket.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pitstop::bench {

struct HttpHold {
    HttpAddress server{};
    int streams = 2000;            // open at once; one that ends is replaced at once
    int prompts = 64;              // distinct; all requests are greedy
    std::int64_t output_len = 64;  // tokens of each
    std::chrono::milliseconds duration{60'000};
    std::chrono::milliseconds end_timeout{60'000};  // for the last streams to end
    std::chrono::milliseconds pause_every{5'000};   // paused in place, and continued at once
    std::chrono::milliseconds poll_every{10};
    // Called after a sixth of the duration, and at its end with all streams open.
    std::function<void(std::chrono::milliseconds since_begin)> at_memory_mark{};
};

struct HttpHoldResult {
    double seconds = 0;              // with all streams open
    int open_min = 0;                // the fewest streams open at once in that time
    std::int64_t finished = 0;       // streams that ended with the expected output
    std::int64_t lost = 0;           // ended early, by an error, or never
    std::int64_t mixed = 0;          // streams that had another's id, text or tokens
    std::int64_t output_tokens = 0;  // in `seconds`
    std::string first_problem{};     // the first problem among lost and mixed streams
    std::vector<double> poll_ms{};   // of GET /is_paused, /get_weight_version, /health
    std::vector<double> pause_ms{};  // of /pause_generation: to the end of the step in flight
    std::vector<double> continue_ms{};
};

// Errors: a connection or a reference request fails, a control route answers anything but 200.
Result<HttpHoldResult> hold_streams(const HttpHold& hold);

}  // namespace pitstop::bench
