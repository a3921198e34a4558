// The memory that the ranks have under each tag, and the current order that changes it (design
// section 6).
//
//   release   accepted -> (steps in flight end) -> ordered -> every rank has answered
//   resume    ordered at once -> every rank has answered
//
// If a rank fails, every rank is ordered to undo the change, so that all ranks are alike again.
// Then the call is answered. So a tag's state here is the state of the whole replica.
//
// Thread:  the loop thread only.
// Bounded: one order at a time.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/memory.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class MemoryBook {
  public:
    struct Job {
        CallId call{};   // the caller's call
        CallId order{};  // the number of the ranks' order
        messages::MemoryAction action = messages::MemoryAction::kRelease;
        std::vector<messages::MemoryTag> tags{};
        bool keep_weights = false;
        bool is_loan = false;                   // lends the KV cache to an update; has no caller
        TimePoint deadline = TimePoint::max();  // latest time of the answer to the caller
        bool is_sent = false;
        bool is_answered = false;        // the caller was told that the call is late
        std::optional<Error> failure{};  // the error of the first rank that failed
        int num_done = 0;                // ranks that completed the order
        // a rank could not undo the order; only a resume makes all ranks alike again
        bool has_way_back_failed = false;
        bool is_turned_back = false;       // the order failed, and every rank is ordered to undo it
        std::vector<bool> has_answered{};  // by rank; answers to the order, or to its undoing
    };

    explicit MemoryBook(int tp);

    [[nodiscard]] messages::MemoryState state(messages::MemoryTag tag) const {
        return states_[index_of(tag)];
    }
    [[nodiscard]] bool is_resident(messages::MemoryTag tag) const {
        return state(tag) == messages::MemoryState::kResident;
    }
    // Returns whether every rank is in the state that state() returns. False once a rank could
    // neither complete an order nor undo it; true again when all ranks have completed another
    // order.
    [[nodiscard]] bool are_ranks_alike(messages::MemoryTag tag) const {
        return !are_apart_[index_of(tag)];
    }
    // Returns whether the memory of every tag is resident, so that a pass may run.
    [[nodiscard]] bool is_all_resident() const;
    // Returns what is not resident, in words: "kv_cache is released, weights is being released".
    [[nodiscard]] std::string what_is_missing() const;

    // Returns the tags that an order concerns: `tags`, or if `tags` is empty, all tags that the
    // order would change.
    [[nodiscard]] std::vector<messages::MemoryTag> tags_for(
        messages::MemoryAction action, const std::vector<messages::MemoryTag>& tags
    ) const;
    // Returns why the order cannot be given now, or nothing. Sets `is_done` if the memory is
    // already in the state that the order asks for.
    [[nodiscard]] std::optional<Error> problem_of(
        messages::MemoryAction action, const std::vector<messages::MemoryTag>& tags, bool& is_done
    ) const;

    // REQUIRES: !problem_of(job.action, job.tags).
    void begin(Job job);
    [[nodiscard]] Job* job() { return job_ ? &*job_ : nullptr; }
    [[nodiscard]] const Job* job() const { return job_ ? &*job_ : nullptr; }
    // Returns the message for every rank: the order, or after a failure its undoing.
    [[nodiscard]] messages::WorkerMemory order() const;

    // Handles a rank's answer, or bytes that the rank measured unasked (call 0). Returns false if
    // the answer belongs to no current order.
    bool handle_done(const messages::WorkerMemoryDone& answer);
    [[nodiscard]] bool have_all_answered() const;
    // Begins to order all ranks back, once a rank has failed and every rank has answered.
    void turn_back();
    // Ends the job. The tags are then as ordered; after a failure they are as before, or released
    // if a rank could not undo the order either. REQUIRES: have_all_answered().
    Job finish();
    // Ends the job without any change. REQUIRES: the job was not sent.
    Job cancel();

    [[nodiscard]] std::vector<messages::TagMemory> totals() const;  // by tag, over all ranks
    // Returns the bytes of graphs that the rank measured last.
    [[nodiscard]] std::int64_t graph_bytes(Rank rank) const {
        return graph_bytes_.at(static_cast<std::size_t>(raw(rank)));
    }
    // Returns the ranks that have not answered the order, in words: "rank 0, rank 2".
    [[nodiscard]] std::string who_is_missing() const;

  private:
    bool accept_measured(const messages::WorkerMemoryDone& answer);
    static std::size_t index_of(messages::MemoryTag tag) { return static_cast<std::size_t>(tag); }

    int tp_;
    std::array<bool, messages::kAllMemoryTags.size()> are_apart_{};
    std::array<messages::MemoryState, messages::kAllMemoryTags.size()> states_{};
    std::vector<std::array<messages::TagMemory, messages::kAllMemoryTags.size()>>
        ranks_;                              // by rank
    std::vector<std::int64_t> graph_bytes_;  // by rank
    std::optional<Job> job_{};
};

}  // namespace pitstop::scheduler
