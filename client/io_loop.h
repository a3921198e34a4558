// The client's thread, which owns the sockets and knows every open request and call. Other threads
// pass commands through one queue and an eventfd; the thread passes chunks to sinks.
//
// Thread: public functions may be called from any thread; functions named io_ run on the
// loop's thread.
#pragma once

#include "base/ids.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/time.h"
#include "client/connection_state.h"
#include "client/link.h"
#include "client/open_work.h"
#include "client/ready_queue.h"
#include "messages/calls.h"
#include "messages/generation.h"
#include "messages/greeting.h"

#include <zmq.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace pitstop {

class IoLoop {
  public:
    using Sink = OpenWork::Sink;
    using OnFrames = OpenWork::OnFrames;

    struct Args {
        std::string data_endpoint{};
        std::string admin_endpoint{};         // empty: none
        std::optional<bus::ClientKey> key{};  // for tcp endpoints
        std::string name{};
        std::size_t open_max = 0;  // limit for open requests, and for open calls
        bool has_callbacks_on_caller = false;
    };
    static Result<std::shared_ptr<IoLoop>> start(Args args);
    ~IoLoop();

    // Waits until every door has greeted back. Errors: a door refused, or the time ran out.
    Result<> wait_ready(std::chrono::milliseconds timeout) {
        return connections_.wait_ready(timeout, args_.data_endpoint);
    }

    // Ends all open requests and calls. After the return no callback runs, and none begins. If a
    // callback on the loop's thread calls this, the remaining callbacks run inside the call, and
    // the thread ends when the callback returns. On other threads, joins the loop's thread.
    void stop();

    RequestNumber start_request(
        messages::Frames frames, std::string rid, Sink sink, TimePoint deadline
    );
    // Ends a request that cannot be sent: its sink gets the error, as for any failed request.
    void refuse_request(const std::string& rid, const Error& error, Sink sink);
    void cancel(std::vector<std::string> rids);
    void cancel_calls(std::vector<CallId> calls);
    // Cancels the request `number` if it is open under the rid; its sink is not called any more.
    void abandon(const std::string& rid, RequestNumber number);
    struct CallArgs {
        messages::Door door{};
        messages::CallOrder order{};
        CallId id{};
        messages::Frames frames{};
        OnFrames on_reply{};
        TimePoint deadline{};
    };
    void start_call(CallArgs call);

    [[nodiscard]] messages::HelloReply hello() const { return connections_.hello(); }
    [[nodiscard]] std::uint64_t num_trees() const { return connections_.num_trees(); }
    [[nodiscard]] bool is_connected() const { return connections_.is_connected(); }
    [[nodiscard]] bool is_on_thread() const {
        return std::this_thread::get_id() == thread_id_.load();
    }
    [[nodiscard]] CallId next_call() { return CallId{next_call_.fetch_add(1)}; }
    [[nodiscard]] ReadyQueue& ready() { return ready_; }
    [[nodiscard]] bool has_callbacks_on_caller() const { return args_.has_callbacks_on_caller; }

  private:
    struct StartRequest {
        messages::Frames frames{};
        std::string rid{};
        OpenWork::Request request{};
    };
    struct RefuseRequest {
        std::string rid{};
        Error error{};
        Sink sink{};
    };
    struct CancelRequests {
        std::vector<std::string> rids{};
        std::vector<CallId> calls{};
    };
    struct AbandonRequest {
        std::string rid{};
        RequestNumber number{};
    };
    struct StartCall {
        CallArgs args{};
    };
    using Command =
        std::variant<StartRequest, RefuseRequest, CancelRequests, AbandonRequest, StartCall>;

    explicit IoLoop(Args args);
    void push(Command command);
    static void refuse_late(Command& command);

    void io_run();
    void io_end();
    void io_execute(StartRequest& command);
    void io_execute(RefuseRequest& command);
    void io_execute(CancelRequests& command);
    void io_execute(AbandonRequest& command);
    void io_execute(StartCall& command);
    void io_execute_after_requests(StartCall& command);
    void io_serve_link(messages::Door door, TimePoint now);
    void io_receive(messages::Door door, TimePoint now, int messages_max);
    void io_dispatch(messages::Door door, const messages::Frames& frames);
    void io_handle(messages::Outputs outputs);
    void io_handle(const messages::ErrorReply& reply);
    void io_chunk(messages::OutputChunk chunk);
    void io_lose(messages::Door door, TimePoint now);
    void io_expire(TimePoint now);
    void io_flush();
    void io_end_request(const std::string& rid, const Error& error);
    void io_end_call(CallId id, Result<messages::Frames> reply);
    void io_fail_all(messages::Door door, const Error& error);
    [[nodiscard]] TimePoint io_wake_time(TimePoint now) const;
    [[nodiscard]] Link& link(messages::Door door);
    [[nodiscard]] bool has_link(messages::Door door) const;
    void io_send(messages::Door door, messages::Frames frames);

    Args args_;
    zmq::context_t context_{1};
    int wake_fd_ = -1;
    std::atomic<std::uint64_t> next_call_{1};
    std::atomic<std::uint64_t> next_request_{1};
    std::atomic<std::thread::id> thread_id_{};  // read while another thread joins thread_
    std::atomic<std::size_t> num_open_{0};
    ReadyQueue ready_;

    ConnectionState connections_;

    Mutex mutex_;
    std::deque<Command> commands_ GUARDED_BY(mutex_){};
    bool is_stopping_ GUARDED_BY(mutex_) = false;

    // Used only by the loop's thread.
    bool is_over_ = false;                // io_end() was called: nothing is open
    std::deque<Command> carrying_out_{};  // taken from commands_, not carried out yet
    std::vector<Link> links_{};           // the data door, then the admin door
    std::vector<std::deque<messages::Frames>> unsent_{};  // per link, while its queue is full
    OpenWork open_{};

    std::thread thread_;  // last, because it uses all of the above
};

}  // namespace pitstop
