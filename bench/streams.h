// Requests that decode side by side until they are stopped, and the gaps between their tokens: what
// a reader notices of an update or a pause.
//
// Thread: one caller; the client's thread notes.
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

// Makes a greedy request of random tokens that gives so many, as tokens alone.
[[nodiscard]] messages::Generate random_request(
    Random& random, std::int64_t prompt_len, std::int64_t output_len, std::int64_t vocab
);

class Streams {
  public:
    struct Args {
        Client* client = nullptr;  // outlives the streams
        int count = 0;
        std::int64_t prompt_len = 0;
        std::int64_t output_len = 0;  // long enough for all that is to be measured
        std::uint64_t seed = 0;
        std::chrono::milliseconds first_token_timeout{120'000};
    };

    // Returns when every stream has its first token.
    static Result<Streams> start(const Args& args);

    Streams(Streams&&) noexcept = default;
    Streams& operator=(Streams&&) = delete;
    ~Streams();

    [[nodiscard]] std::int64_t now_ns() const;

    // Waits until every stream has got `tokens` more tokens. Errors: one has ended; too late.
    Result<> wait_tokens(std::int64_t tokens, std::chrono::milliseconds timeout);

    // Cancels all and waits for their ends. Errors: one ended before, or not by this.
    Result<> stop();

    // Returns everything so far, by time.
    [[nodiscard]] std::vector<ChunkEvent> chunks() const;

  private:
    struct Notes;  // shared with callbacks that may come late
    Streams(Client* client, std::shared_ptr<Notes> notes, std::vector<std::string> rids)
        : client_(client), notes_(std::move(notes)), rids_(std::move(rids)) {}

    Client* client_;
    std::shared_ptr<Notes> notes_;
    std::vector<std::string> rids_{};
};

// Milliseconds between consecutive chunks of a request, of those gaps that overlap one of the
// windows (inside), and of the others (outside).
struct SplitGaps {
    std::vector<double> inside_ms{};
    std::vector<double> outside_ms{};
};
[[nodiscard]] SplitGaps split_gaps(
    const std::vector<ChunkEvent>& chunks, const std::vector<TimeWindow>& windows
);

}  // namespace pitstop::bench
