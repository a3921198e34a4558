// Requests that decode concurrently until stopped, and the gaps between their tokens, by which a
// reader notices an update or a pause.
//
// Thread: one caller; the client's thread records.
#pragma once

#include "base/result.h"
#include "bench/drive.h"
#include "client/client.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pitstop::bench {

// Both times count from the streams' start.
struct TimeWindow {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
};

// Returns a greedy request with a random prompt that generates `output_len` tokens,
// returned as ids only.
[[nodiscard]] messages::Generate random_request(
    Random& random, std::int64_t prompt_len, std::int64_t output_len, std::int64_t vocab
);

class Streams {
  public:
    struct Args {
        Client* client = nullptr;  // outlives the streams
        int count = 0;
        std::int64_t prompt_len = 0;
        std::int64_t output_len = 0;  // long enough for the whole measurement
        std::uint64_t seed = 0;
        std::chrono::milliseconds first_token_timeout{120'000};
    };

    // Returns when every stream has its first token.
    static Result<Streams> start(const Args& args);

    Streams(Streams&&) noexcept = default;
    Streams& operator=(Streams&&) = delete;
    ~Streams();

    [[nodiscard]] std::int64_t now_ns() const;

    // Waits until every stream has got `tokens` more tokens. Errors: a stream has ended; the time
    // ran out.
    Result<> wait_tokens(std::int64_t tokens, std::chrono::milliseconds timeout);

    // Cancels all requests and waits for their ends. Errors: a request ended earlier, or for
    // another reason.
    Result<> stop();

    // Returns everything so far, by time.
    [[nodiscard]] std::vector<ChunkEvent> chunks() const;

  private:
    struct Notes;  // shared with callbacks that may still run
    Streams(Client* client, std::shared_ptr<Notes> notes, std::vector<std::string> rids)
        : client_(client), notes_(std::move(notes)), rids_(std::move(rids)) {}

    Client* client_;
    std::shared_ptr<Notes> notes_;
    std::vector<std::string> rids_{};
};

// The milliseconds between consecutive chunks of a request: gaps that overlap one of the windows
// (inside), and all other gaps (outside).
struct SplitGaps {
    std::vector<double> inside_ms{};
    std::vector<double> outside_ms{};
};
[[nodiscard]] SplitGaps split_gaps(
    const std::vector<ChunkEvent>& chunks, const std::vector<TimeWindow>& windows
);

}  // namespace pitstop::bench
