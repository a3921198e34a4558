// The calls of one session: whether they name it, and for which version they say they are.
//
// A collection is a session that no call opened. Calls that name no session might be another
// trainer's, so the labels that they name are compared: a mixture of two models must not become a
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
    // `label`: the version's, in the call that opened the session; empty: none.
    void open(const std::string& label) { called_label_ = label; }
    // A caller opened it.
    void begin(const messages::BeginUpdate& call) {
        is_unnamed_ = call.unnamed;
        holder_ = call.holder;
    }
    // It takes over from the session of this name, whose calls might still arrive.
    // `may_be_unnamed`: they might come without a session, so such calls are refused.
    void take_over(std::string from, bool may_be_unnamed) {
        took_over_ = std::move(from);
        is_unnamed_refused_ = may_be_unnamed;
    }

    // What a bucket's call names: its session, or whichever is open, or nothing.
    enum class Names { kSession, kAny, kNothing };
    // Counts the call of a bucket.
    void count(Names names);
    // A bucket is ordered. Returns its number, from 1.
    std::int64_t next_bucket() { return ++num_buckets_; }
    // The version's label in a call to a collection. Returns whether it names the version anew.
    bool name(const std::string& label);
    // The version's label in a bucket of a session; empty: none.
    void label_bucket(std::string label);

    // Returns whether the session was begun for calls without a session number.
    [[nodiscard]] bool is_unnamed() const { return is_unnamed_; }
    // Returns whether such calls are refused nonetheless: see take_over().
    [[nodiscard]] bool is_unnamed_refused() const { return is_unnamed_refused_; }
    [[nodiscard]] bool has_taken_over() const { return !took_over_.empty(); }
    // Returns whether some bucket so far did not name the session.
    [[nodiscard]] bool is_any_nameless() const { return num_nameless_ > 0; }
    // Returns whether no unnamed call was among the buckets, of which there are some.
    [[nodiscard]] bool are_all_named() const { return num_buckets_ > 0 && num_unnamed_ == 0; }
    // Returns whether the calls named another label than this.
    [[nodiscard]] bool is_of_another_version(const std::string& label) const {
        return !label.empty() && !called_label_.empty() && label != called_label_;
    }
    [[nodiscard]] std::int64_t num_buckets() const { return num_buckets_; }
    [[nodiscard]] const std::string& holder() const { return holder_; }
    // The version's label in the calls; empty: none named one.
    [[nodiscard]] const std::string& called_label() const { return called_label_; }
    // The version's label in the latest bucket that had one.
    [[nodiscard]] const std::string& bucket_label() const { return bucket_label_; }

    // ---- refusals ----
    // Refuses a call without a session to session `number`. REQUIRES: has_taken_over().
    [[nodiscard]] Error must_be_named(std::uint64_t number) const;
    // Two trainers send at once, or one began after another had died. `calls`: the calls so far, in
    // words. REQUIRES: is_of_another_version(label).
    [[nodiscard]] Error mixture(const std::string& label, std::string_view calls) const;
    // All buckets so far named session `name`, so they are its trainer's. REQUIRES:
    // is_of_another_version(label).
    [[nodiscard]] Error stranger(const std::string& label, std::string_view name) const;

  private:
    std::int64_t num_buckets_ = 0;   // ordered so far
    bool is_unnamed_ = false;        // begun for calls without a session number
    std::int64_t num_unnamed_ = 0;   // calls of such a session so far
    std::int64_t num_nameless_ = 0;  // buckets so far whose calls did not name it
    std::string took_over_{};        // the name of the session before
    bool is_unnamed_refused_ = false;
    std::string holder_{};  // the caller that began it
    std::string bucket_label_{};
    std::string called_label_{};
};

}  // namespace pitstop::tokenizer
