// The replicas' answers to the orders of one update (messages/update_round.h counts the
// answers).
//
// Pure: no clock, no socket.
// Thread:  the loop thread only.
// Bounded: the latest answer and outcome of each replica.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/update_orders.h"
#include "messages/update_round.h"
#include "messages/weights.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tokenizer {

class UpdateAnswers {
  public:
    explicit UpdateAnswers(std::size_t num_replicas)
        : round_(num_replicas),
          answers_(num_replicas),
          awaited_(num_replicas),
          outcomes_(num_replicas) {}

    [[nodiscard]] messages::UpdatePhase phase() const { return round_.phase(); }
    // Returns the last order. REQUIRES: ask() was called.
    [[nodiscard]] messages::UpdateOrder order() const { return round_.order(); }

    // Every replica gets this order. REQUIRES: the phase allows it (messages/update_phase.h).
    void ask(messages::UpdateOrder order);
    // Forgets the outcomes that replicas reported when they stopped, because they do not describe
    // the write that begins now.
    void forget_outcomes() { outcomes_.assign(outcomes_.size(), {}); }

    // Returns whether this is the replica's first answer to the current order.
    [[nodiscard]] bool awaits(const messages::UpdatePart& part) const {
        return round_.awaits(part.order, raw(part.replica));
    }
    // REQUIRES: awaits(part).
    messages::UpdateRound::Progress record(const messages::UpdatePart& part);
    // Records which ranks a replica waits for. Returns false if the replica does not exist.
    bool record_awaited(messages::UpdateWaits waits);

    // Returns the answer of replica 0; after a stage, all replicas have its label and digest.
    [[nodiscard]] const messages::UpdatePart& first() const { return answers_.front(); }
    // Returns why prepared replicas must not commit (their weights, or the
    // configurations of their adapter, differ), or nothing.
    [[nodiscard]] std::optional<Error> problem_of_stages() const;
    // Returns the error code of the first replica that refused the current order, if it gave one.
    [[nodiscard]] std::optional<ErrorCode> refusal_code() const;
    // Returns whether some replica has reported that it is torn.
    [[nodiscard]] bool is_any_torn() const;
    // Returns whether some rank may have written weights, as far as replicas have reported.
    [[nodiscard]] bool may_have_written() const;

    // Adds the latest outcomes of all replicas to a caller's answer.
    void add_to(messages::UpdateReply& reply) const;
    // Returns the bytes that were staged, over all ranks.
    [[nodiscard]] std::int64_t bytes() const;
    // Returns the rank that waits for the most tensors; null if every rank has all.
    [[nodiscard]] const messages::RankOutcome* most_missing() const;
    // Returns how many tensors some rank still waits for.
    [[nodiscard]] std::int64_t num_missing() const;
    // Names the replicas that have not answered, with their ranks: "replica 1 (rank 0, 2), ...".
    [[nodiscard]] std::string who_is_missing() const;

  private:
    messages::UpdateRound round_;
    std::vector<messages::UpdatePart> answers_;       // the latest ones, by replica
    std::vector<std::vector<Rank>> awaited_;          // by replica: the ranks that are not done
    std::vector<messages::ReplicaOutcome> outcomes_;  // the latest ones, by replica
};

}  // namespace pitstop::tokenizer
