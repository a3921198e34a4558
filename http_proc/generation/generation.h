// Runs the engine's requests of one HTTP request: a batch, or the samples of a prompt.
//
//   Generation generation(exchange);
//   generation.start(std::move(preparation), std::move(requests), std::move(names));
//   while (const auto event = co_await generation.next()) use(event->index, event->chunk);
//
// Open requests end in the tree when the client leaves, or when this object is destroyed. Like any
// aborted request, each then ends with its output so far and finish.reason abort.
//
// Thread:  the server's loop.
// Bounded: a chunk that was not taken yet is joined with the next one, so the most that is kept
//          here of a request is its whole output.
#pragma once

#include "base/time.h"
#include "http_proc/format/batch.h"
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
    // One of the engine's requests.
    struct Running {
        std::string rid{};
        std::vector<std::string> names{};  // registered while it is open
        RequestClock clock;
        std::optional<messages::OutputChunk> waiting{};  // output that was not taken yet
        TimePoint taken_at{};                            // when output was last taken
        bool is_open = true;
        bool is_ready = false;  // in State::ready
        bool is_held = false;   // in State::held
    };
    struct State {
        std::vector<Running> running{};
        std::deque<std::size_t> ready{};  // indices of requests with output, oldest first
        std::vector<std::size_t> held{};  // indices that wait for their time (event_pace.h)
        // whether the release of `held` has been scheduled
        bool is_due_asked = false;
        std::size_t num_open = 0;
        std::coroutine_handle<> waiter{};
        std::string waited{};          // why the latest output was late; empty: it was in time
        bool is_waiting_told = false;  // next() must return `waited`

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
        std::size_t index = 0;          // of a request, in the order given to start()
        messages::OutputChunk chunk{};  // the request's last if it has `finish`
        std::string waiting{};  // if not empty: why there is no chunk; then `chunk` is empty
    };

    explicit Generation(Exchange& exchange);
    ~Generation();
    Generation(const Generation&) = delete;
    Generation& operator=(const Generation&) = delete;

    // Starts the requests. Call once. Ends `preparation`, which began when the HTTP request had
    // been read. Until its end, each request can be aborted by its `names` and its rid. REQUIRES:
    // each request has a rid and a list of names.
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
    // Waits for output of any request. Returns nothing when all requests have ended and all output
    // was taken.
    Next next() { return {*state_}; }
    // Returns whether next() would return without waiting.
    [[nodiscard]] bool has_more_now() const { return !state_->ready.empty(); }

    // Returns why the latest output was late; empty if it arrived in time.
    [[nodiscard]] const std::string& waited() const { return state_->waited; }

    // Ends open requests; their last chunks still arrive.
    void cancel();

  private:
    Exchange* exchange_;
    Tree* tree_;
    std::uint64_t silence_ = 0;  // the number of this generation in Silence
    // shared with the client's callbacks
    std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Collects the whole output of each request, in order. If a request fails, returns its error.
[[nodiscard]] Task<Result<std::vector<messages::OutputChunk>>> collect(
    Generation& generation, const Batch& batch
);

// Returns the caller's name for the answer, on OpenAI's and vLLM's routes: X-Request-Id, or the
// body's `id`, or a random name.
[[nodiscard]] std::string name_of_caller(const Request& request, const std::string& id);

// Returns the error that ended the request, if any.
[[nodiscard]] std::optional<Error> error_of(const messages::OutputChunk& chunk);

}  // namespace pitstop::http
