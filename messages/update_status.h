// The parts of a status about updates: the session that is open, the calls that are collected, and
// how the latest updates ended.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/update_seconds.h"
#include "messages/verdict.h"

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::messages {

// One update, rollback, drop or unload, as its caller was told.
struct UpdateRecord {
    std::string what{};
    bool ok = false;
    Verdict verdict{};
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    double age_s = 0;
    std::int64_t bytes = 0;
    UpdateSeconds seconds{};
    std::string adapter{};

    template <class F>
    void fields(F&& f) {
        f("what", what, "the call's type: update_weights, rollback_weights, unload_adapter, ...");
        f("ok", ok, "as in the call's reply, like all fields below");
        verdict.fields_in(f);
        f("epoch",
          epoch,
          "the version that served afterwards; of an adapter: the version that the call has "
          "committed, staged or unloaded, 0: none");
        f("label", label, "its label");
        f("digest", digest, "its digest");
        f("age_s", age_s, "seconds since the answer");
        f("bytes", bytes, "bytes written, all ranks");
        seconds.fields_in(f);
        f("adapter", adapter, "the adapter that the call was for; empty: the model");
    }
    friend bool operator==(const UpdateRecord&, const UpdateRecord&) = default;
};

// An update that is being collected from calls without a session, during a pause or while there are
// no weights.
struct CollectingStatus {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
    double age_s = 0;
    bool must_be_complete = false;
    std::int64_t num_missing = 0;
    std::vector<std::string> missing{};

    template <class F>
    void fields(F&& f) {
        f("calls", calls, "calls received, checked and staged");
        f("bytes", bytes, "bytes staged, all ranks");
        f("age_s", age_s, "seconds since the first call");
        f("must_be_complete",
          must_be_complete,
          "true: the update takes effect with its last tensor (no weights, torn ones, or lost "
          "calls); false: with the call that lets generation continue");
        f("num_missing", num_missing, "with must_be_complete: tensors that have not arrived");
        f("missing", missing, "the names of at most 16 missing tensors");
    }
    friend bool operator==(const CollectingStatus&, const CollectingStatus&) = default;
};

// A session, or a stage that waits for its commit.
struct SessionStatus {
    std::uint64_t session = 0;
    std::string holder{};
    std::string label{};
    bool unnamed = false;
    bool is_busy = false;
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
    double idle_s = 0;
    double ends_in_s = 0;
    std::string adapter{};

    template <class F>
    void fields(F&& f) {
        f("session", session, "the session's number, which its calls give");
        f("holder", holder, "the caller that began it; empty: it gave no name");
        f("label", label, "the label of the future version");
        f("unnamed", unnamed, "calls that name no session belong to it, too");
        f("is_busy", is_busy, "one of its calls is in progress");
        f("calls", calls, "buckets so far");
        f("bytes", bytes, "bytes staged, all ranks");
        f("idle_s", idle_s, "seconds since the answer to the session's latest call; 0: is_busy");
        f("ends_in_s", ends_in_s, "seconds until a session without a call is dropped; 0: is_busy");
        f("adapter", adapter, "the adapter that it loads; empty: the model's weights");
    }
    friend bool operator==(const SessionStatus&, const SessionStatus&) = default;
};

// Calls without a session that were answered as collected, but will take no effect.
struct LostCalls {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
    double age_s = 0;
    std::string why{};

    template <class F>
    void fields(F&& f) {
        f("calls",
          calls,
          "calls that were lost, including the failed one. 0: not counted, because a restart lost "
          "the calls, the pause was over before the first call, or a front end refused a call");
        f("bytes", bytes, "bytes that had been staged, all ranks");
        f("age_s", age_s, "seconds since the event in `why`");
        f("why", why, "the event that ended the collection, or the pause");
    }
    friend bool operator==(const LostCalls&, const LostCalls&) = default;
};

}  // namespace pitstop::messages
