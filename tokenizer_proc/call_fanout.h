// The calls of the admin door that wait for replicas, ranks or last chunks (open_calls.h). Passes
// each call on. Answers calls that read a tensor, calls that abort requests, and late calls.
//
// Thread:  the loop thread only.
// Bounded: kCallsMax open calls of each kind.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/calls.h"
#include "tokenizer_proc/admin_outbox.h"
#include "tokenizer_proc/call_timeouts.h"
#include "tokenizer_proc/named_adapter.h"
#include "tokenizer_proc/open_calls.h"
#include "tokenizer_proc/timeout.h"

#include <chrono>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

class CallFanout {
  public:
    // REQUIRES: the outbox outlives this object.
    CallFanout(int num_replicas, AdminOutbox& out) : num_replicas_(num_replicas), out_(out) {}

    // Sets the number of ranks of each replica.
    void set_tp(int tp) { tp_ = tp; }
    [[nodiscard]] int num_replicas() const { return num_replicas_; }
    [[nodiscard]] int tp() const { return tp_; }

    // Returns an object that gathers one Part of each replica, or of each of its ranks.
    template <class Part>
    [[nodiscard]] Gathered<Part> each() const {
        return Gathered<Part>(num_replicas_, tp_);
    }
    // Opens the call, and passes its order on under the call's number.
    template <class Message, class Passed>
    Result<> pass_on(
        TimePoint now,
        const std::string& peer,
        const Message& message,
        Passed order,
        OpenCalls::Awaited&& awaited,
        std::optional<ReplicaId> to = std::nullopt
    ) {
        const Duration timeout = timeout_or(timeout_of<Message>(), message.timeout_ms);
        ASSIGN_OR_RETURN(
            order.call,
            calls_.open(
                {.caller = {peer, message.call},
                 .what = Message::kType,
                 .adapter = adapter_of(message),
                 .phase = phase_of<Message>(),
                 .deadline = now + timeout + kReplicaGrace,
                 .awaited = std::move(awaited)}
            )
        );
        if constexpr (requires { order.timeout_ms; })
            order.timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
        out_.order(order, to);
        return Ok{};
    }

    // Adds a part of an answer. The last part closes the call and returns all parts. A refusal of
    // weight_digests also closes its call.
    template <class Part>
    [[nodiscard]] std::optional<OpenCalls::Complete<Part>> gather(Part part) {
        if constexpr (std::is_same_v<Part, messages::WorkerDigests>) {
            if (!part.verdict.is_done() && calls_.find<Gathered<Part>>(part.call) != nullptr) {
                AdminCaller caller = calls_.close(part.call);
                return OpenCalls::Complete<Part>{std::move(caller), {std::move(part)}};
            }
        }
        return calls_.handle_part(std::move(part));
    }
    // Adds a rectangle of a tensor. The last rectangle answers the read.
    void handle_piece(messages::WorkerTensor piece);

    // Waits for the last chunks of the requests that an abort ends on these replicas.
    void wait_for_last_chunks(const AdminCaller& caller, TimePoint deadline, LastChunks chunks);
    // Records that a request has ended, and that its last chunk was sent.
    void request_ended(OpenId request);

    // Returns whether a release or a resume of memory is in progress.
    [[nodiscard]] bool is_memory_moving() const {
        return calls_.has<Gathered<messages::MemoryPart>>();
    }
    // Answers the calls whose deadline has passed, and returns them.
    std::vector<OpenCalls::Late> tick(TimePoint now);
    [[nodiscard]] TimePoint next_deadline() const { return calls_.next_deadline(); }
    // Answers every open call with this error.
    void fail_all(const Error& error);

  private:
    int num_replicas_;
    int tp_ = 1;
    OpenCalls calls_{};
    AdminOutbox& out_;
};

}  // namespace pitstop::tokenizer
