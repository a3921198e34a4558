// A cheap client of /generate: many connections on one thread, each sending one request after the
// other, with answers only scanned for token counts.
//
// Thread:  one.
// Bounded: a connection holds the unscanned part of an answer.
#pragma once

#include "base/result.h"
#include "bench/http_socket.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::bench {

struct HttpLoad {
    HttpAddress server{};
    std::string body{};  // the body of every request, streaming or not
    int connections = 1;
    int requests = 1;  // in all
    std::chrono::milliseconds timeout{120'000};
};

struct HttpLoadResult {
    double seconds = 0;
    std::int64_t output_tokens = 0;
    std::vector<double> latencies_ms{};  // of each request, to its last byte
};

// Errors: a connection fails, an answer is not 200, the time is over.
Result<HttpLoadResult> run_http_load(const HttpLoad& load);

}  // namespace pitstop::bench
