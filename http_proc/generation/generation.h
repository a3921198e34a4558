// Runs the engine's requests that answer one HTTP request: a batch, the samples of a prompt.
//
//   Generation generation(exchange);
//   generation.start(std::move(preparation), std::move(requests), std::move(names));
//   while (const auto event = co_await generation.next()) use(event->index, event->chunk);
//
// Whatever is still open ends in the tree when the client goes away (each then ends with its output
// so far and finish.reason abort, as any abort) and when this is destroyed (nobody looks any more).
//
// Thread:  the server's loop.
// Bounded: a chunk that was not taken yet is joined with the one that follows it, so a request
// holds
//          at most its whole output here.
#pragma once

#include "base/time.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/request_metrics.h"
#include "messages/generation.h"

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::http {

class Generation {
    struct State {
        std::vector<std::string> rids{};
        std::vector<std::vector<std::string>> names{};                // by index, while it is open
        std::vector<std::optional<messages::OutputChunk>> waiting{};  // by index
        std::vector<bool> is_open{};                                  // likewise
        std::vector<TimePoint> taken_at{};                            // likewise; the last chunk
        std::vector<bool> is_ready{};                                 // likewise; it is in `ready`
        std::vector<bool> is_held{};                                  // likewise; it is in `held`
        std::deque<std::size_t> ready{};  // indices of what waits, oldest first
        std::vector<std::size_t> held{};  // what waits for its time (event_pace.h)
        bool is_due_asked = false;        // some of it is to be let go of as soon as may be
        std::size_t num_open = 0;
        std::vector<RequestClock> clocks{};  // by index
        std::coroutine_handle<> waiter{};
        std::string waited{};          // why nothing came, the last time; empty: it came in time
        bool is_waiting_told = false;  // next() has that to give

        void handle_chunk(
            std::size_t i,
            messages::OutputChunk chunk,
            Tree& tree,
            const std::shared_ptr<State>& self
        );
        void close(std::size_t i, Tree& tree);
        void drop_names(std::size_t i, Tree& tree);
        void fail(std::size_t i, Tree& tree);
        void make_ready(std::size_t i);
        void release();
        void resume_waiter();
    };

  public:
    struct Event {
        std::size_t index = 0;          // the request's, in the order given to start()
        messages::OutputChunk chunk{};  // with `finish` it is the last of its request
        std::string waiting{};          // not empty: why there is no chunk, and nothing else here
    };

    explicit Generation(Exchange& exchange);
    ~Generation();
    Generation(const Generation&) = delete;
    Generation& operator=(const Generation&) = delete;

    // Is called once; ends `preparation`, which began when the HTTP request had been read. By its
    // `names` each request can be aborted, besides its rid, for as long as it is open.
    // REQUIRES: each request has a rid, and a list of names.
    void start(
        Preparations::Entry preparation,
        std::vector<messages::Generate> requests,
        std::vector<std::vector<std::string>> names
    );

    struct [[nodiscard]] Next {
        State& state;
        bool await_ready() const {
            return !state.ready.empty() || state.is_waiting_told ||
                   (state.num_open == 0 && state.held.empty());
        }
        void await_suspend(std::coroutine_handle<> waiter) { state.waiter = waiter; }
        std::optional<Event> await_resume();
    };
    // Waits for what comes of any request; gives nothing when all have ended and all was taken.
    Next next() { return {*state_}; }
    // Tells whether next() would give something without waiting.
    [[nodiscard]] bool has_more_now() const { return !state_->ready.empty(); }

    // Says why output was waited for, the last time; empty: it came in time.
    [[nodiscard]] const std::string& waited() const { return state_->waited; }

    // Ends what is open: it still gives its last chunks.
    void cancel();

  private:
    Exchange* exchange_;
    Tree* tree_;
    std::uint64_t silence_ = 0;                                 // its number there
    std::shared_ptr<State> state_ = std::make_shared<State>();  // the client's callbacks share it
};

// Collects the whole output of each request, in order. An error of any is the error of all.
[[nodiscard]] Task<Result<std::vector<messages::OutputChunk>>> collect(Generation& generation);

// Returns the caller's name for the answer, on OpenAI's and vLLM's routes: X-Request-Id, or the
// `id` of the body, or a random one.
[[nodiscard]] std::string name_of_caller(const Request& request, const std::string& id);

// Returns the error that ended the request, if one did.
[[nodiscard]] std::optional<Error> error_of(const messages::OutputChunk& chunk);

}  // namespace pitstop::http
