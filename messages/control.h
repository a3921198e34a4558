// The control calls of the admin door: pause, continue, abort, flush, relabel, shut down.
//
// The caller gives every call a number and a deadline. The door sends the call to all replicas, and
// answers once with the parts of all of them: `ok` is true only if every part is ok. After the
// deadline, the answer is an `error` deadline_exceeded that names the silent processes and their
// phase. Order: a replica handles control calls in the order sent, before generation.
#pragma once

#include "base/ids.h"
#include "messages/control_call.h"
#include "messages/fields.h"
#include "messages/verdict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

// The effect of a pause on running requests (design section 4).
enum class PauseMode : std::uint8_t { kAbort, kInPlace, kRetract, kWait };
template <>
struct EnumNames<PauseMode> {
    static constexpr std::array<std::string_view, 4> kNames{"abort", "in_place", "retract", "wait"};
};

struct PauseGeneration {
    static constexpr std::string_view kType = "pause_generation";
    static constexpr std::string_view kAbout =
        "client -> admin door -> schedulers: stop generating. Answered by `pause_reply` when "
        "every replica has stopped: no step is in flight, and in mode wait no request runs.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    PauseMode mode = PauseMode::kAbort;
    double max_pause_s = 0;

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("mode", mode, "what happens to running requests: abort, in_place, retract or wait");
        f("max_pause_s", max_pause_s, "continue automatically after this many seconds; 0: never");
    }
};

struct PausePart {
    static constexpr std::string_view kType = "pause_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: a replica has stopped, or why it has not.";
    static constexpr std::string_view kReplyType = "pause_reply";
    static constexpr std::string_view kReplyAbout =
        "admin door -> client: every replica has stopped, or which replica has not.";
    CallId call{};
    ReplicaId replica{};
    Verdict verdict{};
    bool was_paused = false;
    std::int64_t num_aborted = 0;
    std::int64_t num_retracted = 0;
    std::int64_t num_frozen = 0;
    std::int64_t num_waiting = 0;
    std::int64_t elapsed_us = 0;

    template <class F>
    void fields(F&& f) {
        part_fields(f, *this);
        f("was_paused", was_paused, "the replica was paused before the call");
        f("num_aborted", num_aborted, "requests ended by this call");
        f("num_retracted", num_retracted, "requests sent back to the queue with their tokens");
        f("num_frozen", num_frozen, "requests that keep their pages");
        f("num_waiting", num_waiting, "requests queued");
        f("elapsed_us", elapsed_us, "microseconds from the message to the standstill");
    }
};

using PauseReply = ReplyOf<PausePart>;

struct ContinueGeneration {
    static constexpr std::string_view kType = "continue_generation";
    static constexpr std::string_view kAbout =
        "client -> admin door -> schedulers: generate again. Harmless while running. Ends a "
        "pause that still waits for its requests, too. Answered by `continue_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
    }
};

struct ContinuePart {
    static constexpr std::string_view kType = "continue_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: a replica runs, or why it does not.";
    static constexpr std::string_view kReplyType = "continue_reply";
    static constexpr std::string_view kReplyAbout =
        "admin door -> client: every replica runs, or which replica does not.";
    static constexpr bool kLetsGenerationGoOn = true;
    CallId call{};
    ReplicaId replica{};
    Verdict verdict{};
    bool was_paused = false;
    double paused_s = 0;

    template <class F>
    void fields(F&& f) {
        part_fields(f, *this);
        f("was_paused", was_paused, "the replica was paused before the call");
        f("paused_s", paused_s, "seconds of the pause");
    }
};

using ContinueReply = ReplyOf<ContinuePart>;

// The result of an abort, for one id.
enum class AbortOutcome : std::uint8_t { kAborted, kAlreadyDone, kUnknown };
template <>
struct EnumNames<AbortOutcome> {
    static constexpr std::array<std::string_view, 3> kNames{"aborted", "already_done", "unknown"};
};

inline constexpr std::size_t kAbortIdsMax = 65536;

struct Abort {
    static constexpr std::string_view kType = "abort";
    static constexpr std::string_view kAbout =
        "client -> admin door: end requests of any client, by exact id. Each ends with its output "
        "so "
        "far and finish.reason abort; works while paused. Answered by `abort_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::vector<std::string> rids{};
    bool all = false;
    std::string message{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("rids", rids, "exact ids; or use `all`");
        f("all", all, "every open request");
        f("message", message, "becomes finish.message");
    }
};

struct AbortResult {
    std::string rid{};
    AbortOutcome outcome = AbortOutcome::kUnknown;

    template <class F>
    void fields(F&& f) {
        f("rid", rid, "the id as given");
        f("outcome",
          outcome,
          "aborted, already_done (among the latest ended ids that the door keeps) or unknown");
    }
    friend bool operator==(const AbortResult&, const AbortResult&) = default;
};

struct AbortReply {
    static constexpr std::string_view kType = "abort_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: sent when the final chunk of every aborted request has been sent.";
    CallId call{};
    bool ok = false;
    Verdict verdict{};
    std::vector<AbortResult> results{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok", ok, "every given id was handled, unknown ones included");
        verdict.fields_in(f);
        f("results", results, "per id, in the order given; with all: every request that was open");
    }
};

struct FlushCache {
    static constexpr std::string_view kType = "flush_cache";
    static constexpr std::string_view kAbout =
        "client -> admin door -> schedulers: drop all cached prefixes. Refused while a request "
        "holds pages, unless timeout_ms allows a wait. Answered by `flush_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    bool wait_idle = false;
    bool reset_running = false;

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("wait_idle", wait_idle, "wait, up to the deadline, until no request holds pages");
        f("reset_running",
          reset_running,
          "first retract the running requests, so that no request holds pages. They keep their "
          "tokens, whose KV is computed again");
    }
};

struct FlushPart {
    static constexpr std::string_view kType = "flush_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: a replica's cache is empty, or why it is not.";
    static constexpr std::string_view kReplyType = "flush_reply";
    static constexpr std::string_view kReplyAbout =
        "admin door -> client: the caches of all replicas are empty, or which replica's is not.";
    CallId call{};
    ReplicaId replica{};
    Verdict verdict{};
    std::int64_t pages_freed = 0;

    template <class F>
    void fields(F&& f) {
        part_fields(f, *this);
        f("pages_freed", pages_freed, "pages that held cached prefixes");
    }
};

using FlushReply = ReplyOf<FlushPart>;

struct SetWeightLabel {
    static constexpr std::string_view kType = "set_weight_label";
    static constexpr std::string_view kAbout =
        "client -> admin door -> schedulers: gives the version that serves another label; epoch "
        "and digest stay. Steps already sent keep the old label, so a running request's spans "
        "split there. Refused during an update, or if no version serves. Answered by "
        "`label_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::string label{};
    bool abort_all = false;

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("label", label, "1 to 256 bytes without control characters");
        f("abort_all", abort_all, "also end every open request with its output so far");
    }
};

struct LabelPart {
    static constexpr std::string_view kType = "label_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: later steps have the label.";
    static constexpr std::string_view kReplyType = "label_reply";
    static constexpr std::string_view kReplyAbout =
        "admin door -> client: every replica has the label, or which replica does not.";
    CallId call{};
    ReplicaId replica{};
    Verdict verdict{};
    Epoch epoch{};
    std::string old_label{};
    std::int64_t num_aborted = 0;
    std::string label{};

    template <class F>
    void fields(F&& f) {
        part_fields(f, *this);
        f("epoch", epoch, "the version that was labelled");
        f("old_label", old_label, "its label before");
        f("num_aborted", num_aborted, "requests ended by this call");
        f("label", label, "its label now");
    }
};

using LabelReply = ReplyOf<LabelPart>;

struct Shutdown {
    static constexpr std::string_view kType = "shutdown";
    static constexpr std::string_view kAbout =
        "client -> admin door: end the tree; its launcher's exit code is 0. Answered by "
        "`shutdown_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    double drain_s = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "unused: the answer comes at once");
        f("drain_s",
          drain_s,
          "open requests may still run for this many seconds while new ones are refused; then "
          "(with 0 at once) the remaining ones end with an error");
    }
};

struct ShutdownReply {
    static constexpr std::string_view kType = "shutdown_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: the tree has begun to end. Later messages belong to the open "
        "requests that the drain lets run.";
    CallId call{};
    bool ok = false;
    Verdict verdict{};
    std::int64_t open_requests = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok", ok, "the tree ends");
        verdict.fields_in(f);
        f("open_requests", open_requests, "open requests");
    }
};

std::optional<std::string> invalid(const PauseGeneration& message);
std::optional<std::string> invalid(const Abort& message);
std::optional<std::string> invalid(const SetWeightLabel& message);
std::optional<std::string> invalid(const Shutdown& message);

}  // namespace pitstop::messages
