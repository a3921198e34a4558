// Releases and resumes a replica's memory: handles the calls, the orders to the ranks, and their
// answers (design section 6).
//
// A release stops planning once it is accepted, and begins when no step is in flight. Requests
// never lose memory that they use: a pause with retract must free it first, or the release is
// refused (P4). The caller decides whether requests and updates allow an order.
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
    // Returns the tags that a release of `tags` would change.
    [[nodiscard]] std::vector<messages::MemoryTag> tags_to_release(
        const std::vector<messages::MemoryTag>& tags
    ) const {
        return book_.tags_for(messages::MemoryAction::kRelease, tags);
    }

    // Returns the answer, or nothing if the call waits. The caller must fill in the answer's
    // `has_weights`. `why_not` is the caller's objection.
    std::optional<messages::MemoryPart> release(
        const messages::ReleaseMemory& call, TimePoint now, std::optional<Error> why_not
    );
    std::optional<messages::MemoryPart> resume(
        const messages::ResumeMemory& call, TimePoint now, std::optional<Error> why_not
    );

    // ---- loans of the KV cache's memory to an update; a loan has no call ----
    // Returns whether an order of a call or of a loan is in progress; then no other can be given.
    [[nodiscard]] bool has_order() const { return book_.job() != nullptr; }
    [[nodiscard]] bool is_kv_alike() const {
        return book_.are_ranks_alike(messages::MemoryTag::kKvCache);
    }
    // Returns whether the KV memory is lent: from lend() until its return has succeeded or failed.
    [[nodiscard]] bool is_on_loan() const { return loan_ != Loan::kNone; }
    [[nodiscard]] bool is_lent() const { return loan_ == Loan::kLent; }
    // Returns whether all memory except the KV cache's is resident, and the KV cache is resident,
    // lent, or about to be.
    [[nodiscard]] bool lacks_nothing_but_loan() const {
        return is_all_resident() || (is_on_loan() && is_resident(messages::MemoryTag::kWeights));
    }
    // REQUIRES: !has_order(), the KV cache is resident.
    void lend() { begin_loan(messages::MemoryAction::kRelease); }
    // REQUIRES: !has_order(), is_lent().
    void reclaim() { begin_loan(messages::MemoryAction::kResume); }

    // The consequences of an order for the rest of the replica.
    struct Effects {
        bool releases_kv = false;  // ranks are told to release KV: the prefix cache is worthless
        // ranks are told to release weights: the retained copy becomes worthless
        bool releases_weights = false;
        bool loses_weights = false;           // the bytes of the live copy are gone
        std::optional<Error> loan_failure{};  // why the KV cache could not be lent
        std::optional<messages::MemoryPart> answer{};
    };
    // Sends the current order to the ranks once no step is in flight. Ends the order when all ranks
    // have answered.
    Effects advance(bool is_still, TurnOutput& out);
    // Handles a rank's answer. Returns false if it belongs to no current order.
    bool handle_done(const messages::WorkerMemoryDone& answer) { return book_.handle_done(answer); }
    // Answers the caller that the call is late. Cancels an order that was not sent; one that was
    // sent completes when the ranks answer. `step` names the step that the call waited for.
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
    // while the weights are released: whether host memory keeps their bytes
    bool are_weights_kept_ = false;
    std::uint64_t num_orders_ = 0;
    enum class Loan { kNone, kTaking, kLent, kReturning };
    Loan loan_ = Loan::kNone;
    // why lent memory was not returned; empty: it was returned, or resumed later
    std::string loss_{};
};

}  // namespace pitstop::scheduler
