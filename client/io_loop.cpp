#include "client/io_loop.h"

#include "base/descriptors.h"
#include "messages/codec.h"
#include "messages/door_envelope.h"
#include "messages/message_list.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

constexpr auto kRetryAfter =
    std::chrono::milliseconds(5);             // a full queue does not report when it has room
constexpr int kMessagesAtLossMax = 1 << 16;   // more than a queue holds
constexpr int kLingerMs = 100;                // for the cancels of a client that closes
constexpr std::size_t kCancelRidsMax = 4096;  // per message

messages::OutputChunk error_chunk(const std::string& rid, const Error& error) {
    messages::OutputChunk chunk;
    chunk.rid = rid;
    chunk.finish = messages::Finish{
        .reason = messages::FinishReason::kError,
        .verdict = error,
    };
    return chunk;
}

Error to_error(const messages::ErrorReply& reply) { return reply.error; }

}  // namespace

IoLoop::IoLoop(Args args) : args_(std::move(args)) {}

Result<std::shared_ptr<IoLoop>> IoLoop::start(Args args) {
    // ZeroMQ aborts if it has too few descriptors when it starts its threads.
    constexpr int kDescriptors = 16;
    if (!has_descriptors(kDescriptors)) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "a client needs {} file descriptors; fewer are available (ulimit -n)",
            kDescriptors
        );
    }
    const std::shared_ptr<IoLoop> loop(new IoLoop(std::move(args)));
    loop->wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd_ < 0)
        return make_error(
            ErrorCode::kResourceExhausted, "no file descriptor is left for an eventfd (ulimit -n)"
        );
    const TimePoint now = Clock::now();
    for (const std::string& endpoint : {loop->args_.data_endpoint, loop->args_.admin_endpoint}) {
        if (endpoint.empty()) continue;
        ASSIGN_OR_RETURN(
            Link link,
            Link::open(
                loop->context_,
                {.endpoint = endpoint, .name = loop->args_.name, .key = loop->args_.key},
                now
            )
        );
        loop->links_.push_back(std::move(link));
        loop->unsent_.emplace_back();
    }
    // The application's threads handle its signals, not this thread.
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    // The thread shares ownership of the loop: a callback on it may destroy the client.
    loop->thread_ = std::thread([loop] { loop->io_run(); });
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    pthread_setname_np(loop->thread_.native_handle(), "pitstop-client");
    return loop;
}

IoLoop::~IoLoop() {
    CHECK(!thread_.joinable());
    if (wake_fd_ >= 0) ::close(wake_fd_);
}

void IoLoop::stop() {
    if (!thread_.joinable()) return;
    {
        const MutexLock lock(mutex_);
        is_stopping_ = true;
    }
    if (is_on_thread()) {
        io_end();
        thread_.detach();
        return;
    }
    ::eventfd_write(wake_fd_, 1);
    thread_.join();
}

// ---- commands, from any thread ----

void IoLoop::push(Command command) {
    {
        const MutexLock lock(mutex_);
        if (!is_stopping_) {
            commands_.push_back(std::move(command));
            if (commands_.size() == 1) ::eventfd_write(wake_fd_, 1);
            return;
        }
    }
    refuse_late(command);  // the loop no longer takes commands
}

void IoLoop::refuse_late(Command& command) {
    const Error closed{ErrorCode::kAborted, "the client was closed"};
    if (auto* request = std::get_if<StartRequest>(&command)) {
        (*request->request.sink)(error_chunk(request->rid, closed));
    } else if (auto* refuse = std::get_if<RefuseRequest>(&command)) {
        refuse->sink(error_chunk(refuse->rid, refuse->error));
    } else if (auto* call = std::get_if<StartCall>(&command)) {
        call->args.on_reply(closed);
    }
}

RequestNumber IoLoop::start_request(
    messages::Frames frames, std::string rid, Sink sink, TimePoint deadline
) {
    const RequestNumber number{next_request_.fetch_add(1)};
    if (num_open_.fetch_add(1) >= args_.open_max) {
        num_open_.fetch_sub(1);
        refuse_request(
            rid,
            make_error(
                ErrorCode::kResourceExhausted,
                "this client has {} open requests, the most allowed; wait for one to end",
                args_.open_max
            ),
            std::move(sink)
        );
        return number;
    }
    push(StartRequest{
        std::move(frames),
        std::move(rid),
        {number, std::make_shared<const Sink>(std::move(sink)), deadline}});
    return number;
}

void IoLoop::refuse_request(const std::string& rid, const Error& error, Sink sink) {
    push(RefuseRequest{rid, error, std::move(sink)});
}

void IoLoop::cancel(std::vector<std::string> rids) {
    push(CancelRequests{.rids = std::move(rids)});
}
void IoLoop::cancel_calls(std::vector<CallId> calls) {
    push(CancelRequests{.calls = std::move(calls)});
}

void IoLoop::abandon(const std::string& rid, RequestNumber number) {
    push(AbandonRequest{rid, number});
}

void IoLoop::start_call(CallArgs call) { push(StartCall{std::move(call)}); }

// ---- the loop ----

bool IoLoop::has_link(messages::Door door) const {
    return static_cast<std::size_t>(door) < links_.size();
}

Link& IoLoop::link(messages::Door door) {
    CHECK(has_link(door));
    return links_[static_cast<std::size_t>(door)];
}

void IoLoop::io_run() {
    thread_id_ = std::this_thread::get_id();
    while (!is_over_) {
        bus::Poller poller;
        for (Link& link : links_) link.add_to(poller);
        poller.add_fd(wake_fd_);
        poller.wait(io_wake_time(Clock::now()));

        eventfd_t count = 0;
        ::eventfd_read(wake_fd_, &count);
        bool is_stopping = false;
        {
            const MutexLock lock(mutex_);
            carrying_out_.swap(commands_);
            is_stopping = is_stopping_;
        }
        while (!carrying_out_.empty()) {
            Command command = std::move(carrying_out_.front());
            carrying_out_.pop_front();
            std::visit([&](auto& c) { io_execute(c); }, command);
        }
        const TimePoint now = Clock::now();
        for (std::size_t i = 0; i < links_.size() && !is_over_; ++i)
            io_serve_link(static_cast<messages::Door>(i), now);
        io_flush();
        io_expire(now);
        ready_.wake();  // for callbacks of requests that were refused, lost or late
        if (is_stopping) io_end();
        if (!is_over_) connections_.publish(links_);
    }
    for (Link& link : links_) {
        if (link.is_ready()) link.set_linger_ms(kLingerMs);
    }
    links_.clear();
}

void IoLoop::io_serve_link(messages::Door door, TimePoint now) {
    // Notices the loss first and acts after: earlier messages of the peer can still be read.
    const bool is_lost = link(door).take_loss();
    io_receive(door, now, is_lost ? kMessagesAtLossMax : bus::kMessagesPerTurnMax);
    if (is_over_) return;
    if (is_lost || link(door).is_other_tree()) io_lose(door, now);
    if (!is_over_) link(door).greet_or_reopen(now);
}

// Nothing is open afterwards, and no callback begins. A callback may call this from anywhere in the
// loop, which then ends as soon as possible.
void IoLoop::io_end() {
    if (std::exchange(is_over_, true)) return;
    const Error closed{ErrorCode::kAborted, "the client was closed"};
    // Cancels the requests in the tree now, instead of when the tree next writes to this client.
    CancelRequests all{.rids = open_.rids()};
    if (!all.rids.empty()) io_execute(all);
    io_flush();
    connections_.disconnect();
    io_fail_all(messages::Door::kData, closed);
    if (has_link(messages::Door::kAdmin)) io_fail_all(messages::Door::kAdmin, closed);
    {
        const MutexLock lock(mutex_);  // is_stopping_: no command is added any more
        std::ranges::move(commands_, std::back_inserter(carrying_out_));
        commands_.clear();
    }
    for (Command& command : std::exchange(carrying_out_, {})) refuse_late(command);
}

TimePoint IoLoop::io_wake_time(TimePoint now) const {
    TimePoint time = std::min(now + std::chrono::minutes(1), open_.first_deadline());
    for (const Link& link : links_) time = std::min(time, link.next_attempt());
    for (const std::deque<messages::Frames>& unsent : unsent_) {
        if (!unsent.empty()) time = std::min(time, now + kRetryAfter);
    }
    return time;
}

void IoLoop::io_execute(StartRequest& command) {
    const std::string& rid = command.rid;
    std::optional<Error> refused;
    if (!link(messages::Door::kData).is_ready()) {
        refused = link(messages::Door::kData).why_not();
    } else if (open_.is_open(rid)) {
        refused = make_error(
            ErrorCode::kAlreadyExists, "rid '{}' is an open request of this client", rid
        );
    }
    if (refused) {
        num_open_.fetch_sub(1);
        return (*command.request.sink)(error_chunk(rid, *refused));
    }
    open_.add(rid, std::move(command.request));
    io_send(messages::Door::kData, std::move(command.frames));
}

void IoLoop::io_execute(RefuseRequest& command) {
    command.sink(error_chunk(command.rid, command.error));
}

void IoLoop::io_execute(CancelRequests& command) {
    if (!link(messages::Door::kData).is_ready()) return;  // no request is open at a lost door
    messages::Cancel cancel;
    cancel.calls = std::move(command.calls);
    const auto send = [&] {
        if (cancel.rids.empty() && cancel.calls.empty()) return;
        io_send(messages::Door::kData, encode(std::exchange(cancel, {})));
    };
    for (std::string& rid : command.rids) {
        if (!open_.is_open(rid)) continue;
        cancel.rids.push_back(std::move(rid));
        if (cancel.rids.size() == kCancelRidsMax) send();
    }
    send();
}

void IoLoop::io_execute(AbandonRequest& command) {
    if (!open_.silence(command.rid, command.number)) return;
    CancelRequests cancel{.rids = {std::move(command.rid)}};
    io_execute(cancel);
}

void IoLoop::io_execute(StartCall& command) {
    CallArgs& args = command.args;
    if (!has_link(args.door)) {
        return args.on_reply(
            make_error(ErrorCode::kFailedPrecondition, "this client has no admin door")
        );
    }
    if (!link(args.door).is_ready()) return args.on_reply(link(args.door).why_not());
    if (open_.num_calls() >= args_.open_max) {
        return args.on_reply(make_error(
            ErrorCode::kResourceExhausted,
            "this client has {} open calls, the most allowed; wait for an answer",
            args_.open_max
        ));
    }
    if (auto error = problem_of_size(args.frames)) return args.on_reply(*std::move(error));
    if (args.order == messages::CallOrder::kAfterRequests)
        return io_execute_after_requests(command);
    open_.add(
        args.id,
        OpenWork::Call{
            .door = args.door, .on_reply = std::move(args.on_reply), .deadline = args.deadline}
    );
    io_send(args.door, std::move(args.frames));
}

// Sends a fence to the data door before the command. Any answer proves that the door has read
// everything sent before. A lost connection proves as much: no request is open at a lost door.
// After the deadline the caller gets an error, but the command is still carried out.
void IoLoop::io_execute_after_requests(StartCall& command) {
    messages::Fence fence;
    fence.call = next_call();
    StartCall first{
        {.door = messages::Door::kData,
         .order = messages::CallOrder::kAtOnce,
         .id = fence.call,
         .frames = encode(fence),
         .deadline = command.args.deadline}};
    command.args.order = messages::CallOrder::kAtOnce;
    // Shared because a std::function must be copyable; there is one instance.
    first.args.on_reply = [this,
                           then = std::make_shared<StartCall>(std::move(command)
                           )](const Result<messages::Frames>&) { io_execute(*then); };
    io_execute(first);
}

void IoLoop::io_send(messages::Door door, messages::Frames frames) {
    std::deque<messages::Frames>& unsent = unsent_[static_cast<std::size_t>(door)];
    add_tree(frames, link(door).tree());
    if (unsent.empty() && link(door).send(frames) == bus::Sent::kSent) return;
    unsent.push_back(std::move(frames));  // bounded by the open requests and calls
}

void IoLoop::io_flush() {
    for (std::size_t i = 0; i < links_.size(); ++i) {
        while (!unsent_[i].empty() && links_[i].send(unsent_[i].front()) == bus::Sent::kSent) {
            unsent_[i].pop_front();
        }
    }
}

void IoLoop::io_receive(messages::Door door, TimePoint now, int messages_max) {
    for (int i = 0; i < messages_max; ++i) {
        const std::optional<bus::Received> received = link(door).receive(now);
        if (!received || is_over_) return;
        if (!received->refused) io_dispatch(door, received->frames);
        ready_.wake();
    }
}

// Any other message than output and errors is the reply to a call, whose caller knows its type.
void IoLoop::io_dispatch(messages::Door door, const messages::Frames& frames) {
    using Known = messages::MessageList<messages::Outputs, messages::ErrorReply>;
    const auto use = [&](auto message) -> Result<> {
        io_handle(std::move(message));
        return Ok{};
    };
    const Result<bool> taken = Known::dispatch(frames, messages::UnknownFields::kIgnore, use);
    if (!taken) return io_fail_all(door, taken.error());  // the call that it belongs to is unknown
    if (!*taken) io_end_call(CallId{messages::peek_uint(frames, "call")}, frames);
}

void IoLoop::io_handle(messages::Outputs outputs) {
    for (messages::OutputChunk& chunk : outputs.chunks) io_chunk(std::move(chunk));
}

void IoLoop::io_handle(const messages::ErrorReply& reply) {
    if (!reply.rid.empty()) io_end_request(reply.rid, to_error(reply));
    if (raw(reply.call) != 0) io_end_call(reply.call, to_error(reply));
}

void IoLoop::io_chunk(messages::OutputChunk chunk) {
    const std::shared_ptr<const Sink> sink = open_.take_sink(chunk);
    if (sink == nullptr) return;
    if (chunk.finish) num_open_.fetch_sub(1);
    (*sink)(std::move(chunk));
}

void IoLoop::io_end_request(const std::string& rid, const Error& error) {
    io_chunk(error_chunk(rid, error));
}

void IoLoop::io_end_call(CallId id, Result<messages::Frames> reply) {
    if (const auto on_reply = open_.take_call(id)) (*on_reply)(std::move(reply));
}

void IoLoop::io_fail_all(messages::Door door, const Error& error) {
    if (door == messages::Door::kData) {
        for (const std::string& rid : open_.rids()) io_end_request(rid, error);
    }
    for (const CallId id : open_.calls_at(door)) io_end_call(id, error);
}

void IoLoop::io_lose(messages::Door door, TimePoint now) {
    unsent_[static_cast<std::size_t>(door)].clear();
    const std::string_view why =
        link(door).is_other_tree() ? "was restarted" : "is lost: its connection broke";
    const Error error = make_error(
        ErrorCode::kUnavailable,
        "the tree at {} {}; calls that it has not answered may have taken effect",
        link(door).endpoint(),
        why
    );
    link(door).reopen(now);
    connections_.publish(links_);  // before the callbacks, which may ask is_connected()
    io_fail_all(door, error);
}

void IoLoop::io_expire(TimePoint now) {
    while (const std::optional<OpenWork::Id> late = open_.first_late(now)) {
        if (const auto* id = std::get_if<CallId>(&*late)) {
            io_end_call(
                *id, make_error(ErrorCode::kDeadlineExceeded, "the tree did not answer in time")
            );
            continue;
        }
        const std::string& rid = std::get<std::string>(*late);
        CancelRequests cancel{.rids = {rid}};
        io_execute(cancel);
        io_end_request(
            rid,
            make_error(ErrorCode::kDeadlineExceeded, "request '{}' did not finish in time", rid)
        );
    }
}

}  // namespace pitstop
