// Releases and resumes a replica's memory: the calls, the orders to the ranks, the answers (design
// section 6).
//
// A release begins when no step is in flight, and stops planning once it is accepted. Requests
// never lose memory that they use: a pause with retract frees it first, or the release is refused
// (P4). The caller decides whether requests and updates allow an order.
//
// Thread:  the loop thread only.
// Bounded: one order at a time (MemoryBook).
#pragma once

#include "scheduler_proc/memory_book.h"
#include "scheduler_proc/turn.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class ReplicaMemory {
  public:
    ReplicaMemory(ReplicaId replica, int tp) : replica_(replica), book_(tp) {}

    [[nodiscard]] bool is_all_resident() const { return book_.is_all_resident(); }
    [[nodiscard]] bool is_resident(messages::MemoryTag tag) const { return book_.is_resident(tag); }
    [[nodiscard]] std::string what_is_missing() const;
    [[nodiscard]] std::vector<messages::TagMemory> totals() const { return book_.totals(); }
    [[nodiscard]] std::int64_t graph_bytes(Rank rank) const { return book_.graph_bytes(rank); }
    // Returns the tags that a release with these would change.
    [[nodiscard]] std::vector<messages::MemoryTag> tags_to_release(
        const std::vector<messages::MemoryTag>& tags
    ) const {
        return book_.tags_for(messages::MemoryAction::kRelease, tags);
    }

    // Answers lack `has_weights`, which the caller fills in; no answer means that the call waits.
    // `why_not` is the caller's objection.
    std::optional<messages::MemoryPart> release(
        const messages::ReleaseMemory& call, TimePoint now, std::optional<Error> why_not
    );
    std::optional<messages::MemoryPart> resume(
        const messages::ResumeMemory& call, TimePoint now, std::optional<Error> why_not
    );

    // ---- the KV cache's memory, lent to an update: these have no caller ---- Returns whether an
    // order of a call or of a loan is in progress; then no other order can be given.
    [[nodiscard]] bool has_order() const { return book_.job() != nullptr; }
    [[nodiscard]] bool is_kv_alike() const {
        return book_.are_ranks_alike(messages::MemoryTag::kKvCache);
    }
    // Whether the KV memory is lent: from lend() until it is returned, or its return has failed.
    [[nodiscard]] bool is_on_loan() const { return loan_ != Loan::kNone; }
    [[nodiscard]] bool is_lent() const { return loan_ == Loan::kLent; }
    // Returns whether all memory except the KV cache's is resident, and the KV cache is lent
    // or about to be.
    [[nodiscard]] bool lacks_nothing_but_loan() const {
        return is_all_resident() || (is_on_loan() && is_resident(messages::MemoryTag::kWeights));
    }
    // REQUIRES: !has_order(), the KV cache is resident.
    void lend() { begin_loan(messages::MemoryAction::kRelease); }
    // REQUIRES: !has_order(), is_lent().
    void reclaim() { begin_loan(messages::MemoryAction::kResume); }

    // The consequences of an order's step for the rest of the replica.
    struct Effects {
        bool releases_kv = false;  // the ranks are told to: the prefix cache becomes worthless
        // the ranks are told to: the retained copy becomes worthless
        bool releases_weights = false;
        bool loses_weights = false;           // the live copy's bytes are gone
        std::optional<Error> loan_failure{};  // the KV cache could not be lent
        std::optional<messages::MemoryPart> answer{};
    };
    // Sends the current order to the ranks once no step is in flight, and ends it when all
    // have answered.
    Effects advance(bool is_still, TurnOutput& out);
    // Returns false if the rank's answer belongs to no current order.
    bool handle_done(const messages::WorkerMemoryDone& answer) { return book_.handle_done(answer); }
    // Answers the caller that the call is late. An order that was not sent is cancelled; a sent one
    // completes when the ranks answer. `step` names the step that it waited for.
    std::optional<messages::MemoryPart> end_late_call(TimePoint now, const std::string& step);
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  private:
    [[nodiscard]] messages::MemoryPart answer(
        CallId call, std::optional<Error> error, bool was_done
    ) const;
    [[nodiscard]] CallId next_order();
    void begin_loan(messages::MemoryAction action);
    void finish_loan(const MemoryBook::Job& done, Effects& effects);

    ReplicaId replica_;
    MemoryBook book_;
    // while the weights are released: whether host memory keeps them
    bool are_weights_kept_ = false;
    std::uint64_t num_orders_ = 0;
    enum class Loan { kNone, kTaking, kLent, kReturning };
    Loan loan_ = Loan::kNone;
    // why lent memory was not returned; empty: it was returned, or resumed later
    std::string loss_{};
};

}  // namespace pitstop::scheduler
