// Runs a client of /generate that costs little: many connections on one thread, each with one
// request after the other, answers scanned for what is counted.
//
// Thread:  one.
// Bounded: a connection holds the part of an answer that was not looked at yet.
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
    std::string body{};  // of every request; streams or not, as it says
    int connections = 1;
    int requests = 1;  // in all
    std::chrono::milliseconds timeout{120'000};
};

struct HttpLoadResult {
    double seconds = 0;
    std::int64_t output_tokens = 0;
    std::vector<double> latencies_ms{};  // of each request, to its last byte
};

// Errors: a connection that fails, an answer that is not 200, the time is over.
Result<HttpLoadResult> run_http_load(const HttpLoad& load);

}  // namespace pitstop::bench
