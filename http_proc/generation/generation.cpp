#include "http_proc/generation/generation.h"

#include "base/log.h"
#include "base/utf8.h"
#include "messages/chunks.h"

#include <new>
#include <utility>

namespace pitstop::http {
namespace {

void join(std::optional<messages::OutputChunk>& waiting, messages::OutputChunk next) {
    if (waiting) {
        messages::append_chunk(*waiting, std::move(next));
    } else {
        waiting = std::move(next);
    }
}

}  // namespace

Generation::Generation(Exchange& exchange) : exchange_(&exchange), tree_(&exchange.tree()) {}

Generation::~Generation() {
    exchange_->on_gone(nullptr);
    tree_->silence().remove(silence_);
    try {
        cancel();
    } catch (const std::bad_alloc&) {
        spdlog::error("no memory to end requests whose client has left");
    }
    for (std::size_t i = 0; i < state_->running.size(); ++i) state_->drop_names(i, *tree_);
    tree_->num_generating -= static_cast<int>(state_->running.size());
}

void Generation::start(
    Preparations::Entry preparation,
    std::vector<messages::Generate> requests,
    std::vector<std::vector<std::string>> names
) {
    // The preparation ends when the client library has the requests: from then on, an abort finds
    // them there.
    const Preparations::Entry to_the_end = std::move(preparation);
    CHECK(state_->running.empty());
    CHECK(names.size() == requests.size());
    State& state = *state_;
    state.num_open = requests.size();
    const std::vector<std::string> client = exchange_->client();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        requests[i].client = client;
        const Running& running = state.running.emplace_back(Running{
            .rid = requests[i].rid,
            .names = std::move(names[i]),
            .clock = RequestClock(Clock::now(), requests[i].stream),
        });
        ++tree_->num_generating;
        for (const std::string& name : running.names) tree_->add_name(name, running.rid);
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const auto on_chunk = [shared = state_, i, tree = tree_](messages::OutputChunk chunk) {
            if (!shared->running[i].is_open) return;  // the request has failed in this process
            try {
                shared->handle_chunk(i, std::move(chunk), *tree, shared);
            } catch (const std::bad_alloc&) {
                shared->fail(i, *tree);
            }
        };
        tree_->client().generate(std::move(requests[i]), on_chunk);
    }
    silence_ = tree_->silence().add(
        [weak = std::weak_ptr<State>(state_)](const std::string& why) {
            const auto state_kept = weak.lock();
            if (!state_kept || state_kept->num_open == 0) return;
            state_kept->waited = why;
            state_kept->is_waiting_told = true;
            state_kept->resume_waiter();
        },
        Clock::now()
    );
    exchange_->let_go();
    exchange_->on_gone([this] { cancel(); });
}

void Generation::State::handle_chunk(
    std::size_t i, messages::OutputChunk chunk, Tree& tree, const std::shared_ptr<State>& self
) {
    const TimePoint now = Clock::now();
    tree.silence().note_output(now);
    Running& request = running[i];
    request.clock.chunk(chunk, now, tree.request_metrics);
    const bool is_last = chunk.finish.has_value();
    join(request.waiting, std::move(chunk));
    if (is_last) close(i, tree);
    if (request.is_ready) return;
    const auto period = EventPace::period_of(tree.num_generating);
    const bool is_due = is_last || now - request.taken_at >= period;
    if (is_due && tree.num_generating <= EventPace::kAtOnceMax) {
        make_ready(i);
        return resume_waiter();
    }
    const bool is_asked = is_due ? is_due_asked : !held.empty();
    if (is_due) is_due_asked = true;
    if (!request.is_held) held.push_back(i);
    request.is_held = true;
    if (is_asked) return;
    const auto release_kept = [weak = std::weak_ptr<State>(self)] {
        if (const auto kept = weak.lock()) kept->release();
    };
    tree.event_pace().hold(release_kept, is_due ? EventPace::Wait{0} : period);
}

void Generation::State::close(std::size_t i, Tree& tree) {
    running[i].is_open = false;
    --num_open;
    drop_names(i, tree);
}

// Frees the request's names and rid before its caller learns that it has ended.
void Generation::State::drop_names(std::size_t i, Tree& tree) {
    Running& request = running[i];
    for (const std::string& name : request.names) tree.remove_name(name, request.rid);
    request.names.clear();
}

// Ends a request here and in the tree, because there is no memory for its output.
void Generation::State::fail(std::size_t i, Tree& tree) {
    if (running[i].is_open) close(i, tree);  // the chunk that needed the memory may be its last
    messages::Finish finish{.reason = messages::FinishReason::kError};
    finish.verdict = Error{ErrorCode::kResourceExhausted, "no memory for the output"};
    running[i].waiting.emplace().finish = std::move(finish);
    tree.client().cancel({running[i].rid});
    make_ready(i);
    resume_waiter();
}

void Generation::State::make_ready(std::size_t i) {
    Running& request = running[i];
    request.is_held = false;
    if (std::exchange(request.is_ready, true)) return;
    ready.push_back(i);
}

// Moves requests from `held` to `ready`, because their time has come.
void Generation::State::release() {
    is_due_asked = false;
    for (const std::size_t i : std::exchange(held, {})) {
        if (running[i].is_held) make_ready(i);
    }
    if (!ready.empty() || num_open == 0) resume_waiter();
}

void Generation::State::resume_waiter() {
    if (const auto resumed = std::exchange(waiter, nullptr)) resumed.resume();
}

std::optional<Generation::Event> Generation::Next::await_resume() {
    Event event;
    if (state.ready.empty() && state.is_waiting_told) event.waiting = state.waited;
    state.is_waiting_told = false;
    if (!event.waiting.empty()) return event;
    if (state.ready.empty()) return std::nullopt;
    event.index = state.ready.front();
    state.ready.pop_front();
    Running& request = state.running[event.index];
    request.is_ready = false;
    request.taken_at = Clock::now();
    event.chunk = *std::exchange(request.waiting, std::nullopt);
    return event;
}

void Generation::cancel() {
    if (state_->num_open == 0) return;
    std::vector<std::string> rids;
    for (const Running& request : state_->running) {
        if (request.is_open) rids.push_back(request.rid);
    }
    tree_->client().cancel(std::move(rids));
}

Task<Result<std::vector<messages::OutputChunk>>> collect(
    Generation& generation, const Batch& batch
) {
    std::vector<messages::OutputChunk> outputs;
    while (auto event = co_await generation.next()) {
        if (!event->waiting.empty()) continue;
        if (auto error = error_of(event->chunk))
            co_return batch.error_of_request(event->index, *std::move(error));
        if (outputs.size() <= event->index) outputs.resize(event->index + 1);
        messages::append_chunk(outputs[event->index], std::move(event->chunk));
    }
    co_return outputs;
}

std::string name_of_caller(const Request& request, const std::string& id) {
    constexpr std::size_t kBytesMax =
        messages::kRidBytesMax / 2;  // leaves room for a prefix and an index
    const auto header = request.header("x-request-id");
    if (header && !header->empty() && header->size() <= kBytesMax && is_utf8(*header))
        return std::string(*header);
    return id.empty() ? Tree::random_id() : id;
}

std::optional<Error> error_of(const messages::OutputChunk& chunk) {
    if (!chunk.finish || chunk.finish->reason != messages::FinishReason::kError)
        return std::nullopt;
    return chunk.finish->verdict.error();
}

}  // namespace pitstop::http
