// The calls of one session: whether they name the session, and the label of their version.
//
// A collection is a session that no call opened. Calls that name no session might be another
// trainer's. So their labels are compared: a mixture of two models must not become a
// version.
//
// Pure: no clock, no socket.
// Thread:  the loop thread only.
// Bounded: counts, and the latest labels.
#pragma once

#include "base/result.h"
#include "messages/weights.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::tokenizer {

class SessionCalls {
  public:
    // `label`: the version's label in the call that opens the session; empty: none.
    void open(const std::string& label) { called_label_ = label; }
    // A caller opens the session.
    void begin(const messages::BeginUpdate& call) {
        is_unnamed_ = call.unnamed;
        holder_ = call.holder;
    }
    // The session takes over from the session named `from`, whose calls might still arrive.
    // `may_be_unnamed`: those calls might name no session, so such calls are refused.
    void take_over(std::string from, bool may_be_unnamed) {
        took_over_ = std::move(from);
        is_unnamed_refused_ = may_be_unnamed;
    }

    // The session that a bucket's call names: its own, any that is open, or none.
    enum class Names { kSession, kAny, kNothing };
    // Counts the call of a bucket.
    void count(Names names);
    // A bucket is ordered. Returns its number, from 1.
    std::int64_t next_bucket() { return ++num_buckets_; }
    // Records the label in a call to a collection. Returns whether it names the version anew.
    bool name(const std::string& label);
    // Records the label in a bucket of a session; empty: none.
    void label_bucket(std::string label);

    // Returns whether the session was begun for calls without a session number.
    [[nodiscard]] bool is_unnamed() const { return is_unnamed_; }
    // Returns whether calls without a session number are refused nonetheless; see take_over().
    [[nodiscard]] bool is_unnamed_refused() const { return is_unnamed_refused_; }
    [[nodiscard]] bool has_taken_over() const { return !took_over_.empty(); }
    // Returns whether some bucket so far did not name the session.
    [[nodiscard]] bool is_any_nameless() const { return num_nameless_ > 0; }
    // Returns whether there are buckets, and none of them came from an unnamed call.
    [[nodiscard]] bool are_all_named() const { return num_buckets_ > 0 && num_unnamed_ == 0; }
    // Returns whether the calls so far have another label than `label`.
    [[nodiscard]] bool is_of_another_version(const std::string& label) const {
        return !label.empty() && !called_label_.empty() && label != called_label_;
    }
    [[nodiscard]] std::int64_t num_buckets() const { return num_buckets_; }
    [[nodiscard]] const std::string& holder() const { return holder_; }
    // The label in the calls; empty: no call had one.
    [[nodiscard]] const std::string& called_label() const { return called_label_; }
    // The label in the latest bucket that had one.
    [[nodiscard]] const std::string& bucket_label() const { return bucket_label_; }

    // ---- refusals ----
    // Refuses a call without a session, for session `number`. REQUIRES: has_taken_over().
    [[nodiscard]] Error must_be_named(std::uint64_t number) const;
    // Refuses a call of another version: two trainers send at once, or one began after another
    // died. `calls` describes the calls so far. REQUIRES: is_of_another_version(label).
    [[nodiscard]] Error mixture(const std::string& label, std::string_view calls) const;
    // Refuses a call of another trainer: all buckets so far named session `name`, so they come from
    // that session's trainer. REQUIRES: is_of_another_version(label).
    [[nodiscard]] Error stranger(const std::string& label, std::string_view name) const;

  private:
    std::int64_t num_buckets_ = 0;   // ordered so far
    bool is_unnamed_ = false;        // begun for calls without a session number
    std::int64_t num_unnamed_ = 0;   // unnamed calls so far, in a session for such calls
    std::int64_t num_nameless_ = 0;  // buckets so far whose calls did not name the session
    std::string took_over_{};        // the name of the previous session
    bool is_unnamed_refused_ = false;
    std::string holder_{};  // the caller that began the session
    std::string bucket_label_{};
    std::string called_label_{};
};

}  // namespace pitstop::tokenizer
