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
    for (std::size_t i = 0; i < state_->rids.size(); ++i) state_->drop_names(i, *tree_);
    tree_->num_generating -= static_cast<int>(state_->rids.size());
}

void Generation::start(
    Preparations::Entry preparation,
    std::vector<messages::Generate> requests,
    std::vector<std::vector<std::string>> names
) {
    // The preparation ends once the requests are with the client, where an abort finds them.
    const Preparations::Entry to_the_end = std::move(preparation);
    CHECK(state_->rids.empty());
    CHECK(names.size() == requests.size());
    State& state = *state_;
    state.names = std::move(names);
    state.waiting.resize(requests.size());
    state.is_open.assign(requests.size(), true);
    state.taken_at.assign(requests.size(), TimePoint{});
    state.is_ready.assign(requests.size(), false);
    state.is_held.assign(requests.size(), false);
    state.num_open = requests.size();
    tree_->num_generating += static_cast<int>(requests.size());
    const std::vector<std::string> client = exchange_->client();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        requests[i].client = client;
        state.rids.push_back(requests[i].rid);
        for (const std::string& name : state.names[i]) tree_->add_name(name, requests[i].rid);
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
        state.clocks.emplace_back(Clock::now(), requests[i].stream);
        const auto on_chunk = [shared = state_, i, tree = tree_](messages::OutputChunk chunk) {
            if (!shared->is_open[i]) return;  // failed here
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
    clocks[i].chunk(chunk, now, tree.request_metrics);
    const bool is_last = chunk.finish.has_value();
    join(waiting[i], std::move(chunk));
    if (is_last) close(i, tree);
    if (is_ready[i]) return;
    const auto period = EventPace::period_of(tree.num_generating);
    const bool is_due = is_last || now - taken_at[i] >= period;
    if (is_due && tree.num_generating <= EventPace::kAtOnceMax) {
        make_ready(i);
        return resume_waiter();
    }
    const bool is_asked = is_due ? is_due_asked : !held.empty();
    if (is_due) is_due_asked = true;
    if (!is_held[i]) held.push_back(i);
    is_held[i] = true;
    if (is_asked) return;
    const auto release_kept = [weak = std::weak_ptr<State>(self)] {
        if (const auto kept = weak.lock()) kept->release();
    };
    tree.event_pace().hold(release_kept, is_due ? EventPace::Wait{0} : period);
}

void Generation::State::close(std::size_t i, Tree& tree) {
    is_open[i] = false;
    --num_open;
    drop_names(i, tree);
}

// Its names are free before its caller learns of its end, and so is its rid.
void Generation::State::drop_names(std::size_t i, Tree& tree) {
    for (const std::string& name : names[i]) tree.remove_name(name, rids[i]);
    names[i].clear();
}

// No memory for its output: the request ends with that error, here and in the tree.
void Generation::State::fail(std::size_t i, Tree& tree) {
    if (is_open[i]) close(i, tree);  // the chunk without memory may have been its last
    messages::Finish finish{.reason = messages::FinishReason::kError};
    finish.verdict = Error{ErrorCode::kResourceExhausted, "no memory for the output"};
    waiting[i].emplace().finish = std::move(finish);
    tree.client().cancel({rids[i]});
    make_ready(i);
    resume_waiter();
}

void Generation::State::make_ready(std::size_t i) {
    is_held[i] = false;
    if (is_ready[i]) return;
    is_ready[i] = true;
    ready.push_back(i);
}

// Makes held requests ready, as their time has come.
void Generation::State::release() {
    is_due_asked = false;
    for (const std::size_t i : std::exchange(held, {})) {
        if (is_held[i]) make_ready(i);
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
    state.is_ready[event.index] = false;
    state.taken_at[event.index] = Clock::now();
    event.chunk = *std::exchange(state.waiting[event.index], std::nullopt);
    return event;
}

void Generation::cancel() {
    if (state_->num_open == 0) return;
    std::vector<std::string> rids;
    for (std::size_t i = 0; i < state_->rids.size(); ++i) {
        if (state_->is_open[i]) rids.push_back(state_->rids[i]);
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
        messages::kRidBytesMax / 2;  // a prefix and an index are added
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
