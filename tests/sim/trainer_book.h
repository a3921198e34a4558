// The calls that each trainer believes it has sent: those answered with ok since its pause or
// begin. A version that takes effect has all of a trainer's calls or none (P2). It never has calls
// of two trainers, except by a rule in docs/weights.md. Derived from that page, from the ranks'
// contents and the answers to trainers: the doors' own books are not used.
#pragma once

#include "base/time.h"
#include "messages/weights.h"
#include "tests/sim/model_worker.h"
#include "tests/sim/oracle.h"
#include "tokenizer_proc/update_output.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace pitstop::sim {

// The sender of the bytes: trainers name them "ipc://@TRAINER-NUMBER".
[[nodiscard]] std::string trainer_of(const std::string& bytes);

class TrainerBook {
  public:
    // The oracle outlives the book.
    explicit TrainerBook(Oracle& oracle) : oracle_(oracle) {}

    // ---- what trainers do and hear ----
    // The trainer sends these bytes for a session; 0: the call names none. `label`: the version's,
    // if the call names one. `adapter`: the one that the trainer brings; empty: the model.
    void sent(
        const std::string& bytes,
        std::uint64_t session,
        const std::string& label = "",
        const std::string& adapter = ""
    ) {
        named_[bytes] = session;
        labels_[bytes] = label;
        adapters_[trainer_of(bytes)] = adapter;
    }
    // The trainer sends these bytes on the bus, for the open session or for the collection.
    void sent_to_whichever(
        const std::string& bytes, const std::string& label = "", const std::string& adapter = ""
    ) {
        sent(bytes, 0, label, adapter);
        for_whichever_.insert(bytes);
    }
    // The bytes are received, checked and staged in that session (0: collected), and take effect
    // later.
    void acknowledged(TimePoint now, const std::string& bytes, std::uint64_t session);
    // A call of that trainer that names no session is refused.
    void refused(TimePoint now, const std::string& trainer, const Error& why);
    // The call with these bytes is refused, and the collection is not given up for it. A call that
    // names a session is only a part of that session.
    void part_refused(const std::string& bytes) {
        if (named_.at(bytes) == 0) refused_by_front_end(trainer_of(bytes));
    }
    // A call of that trainer is refused before the tree has read which session it names.
    void refused_by_front_end(const std::string& trainer) {
        if (unnamed_.contains(trainer)) lacking_.insert(trainer);
    }
    // A session has begun. `takes_unnamed`: calls that name no session are its buckets. `adapter`:
    // the one whose session it is; empty: it is the model's.
    void began(
        TimePoint now, std::uint64_t session, bool takes_unnamed, const std::string& adapter = ""
    );
    // The answer to a pause or a continue reported the loss: later calls begin a new set.
    // Answers that one turn of the doors gives to several callers have no known order.
    void told_of_loss(TimePoint now) {
        forget_unnamed("");
        all_told_at_ = now;
    }

    // ---- what the door orders, and ranks do ----
    // If an end fails, its caller knows, and nothing of that session follows.
    void ordered(const tokenizer::ReplicaOrder& order);
    // The first rank commits `staged`; `is_mending`: no version served before.
    void took_effect(const ModelWorker::Staged& staged, bool is_mending);
    // An earlier version serves again.
    void rolled_back() { published_.clear(); }

    std::int64_t num_acknowledged = 0;
    std::int64_t num_whole_sets = 0;  // of two calls or more, that took effect
    std::int64_t num_mixed = 0;       // versions with calls of several trainers
    std::int64_t num_told = 0;        // trainers that were told of a loss

  private:
    using Set = std::set<std::string>;  // bytes

    void check_named(const ModelWorker::Staged& staged);
    void check_unnamed(const ModelWorker::Staged& staged);
    void check_labels(const ModelWorker::Staged& staged);
    void wait_is_over(TimePoint now);
    [[nodiscard]] std::string adapter_of(const std::string& trainer) const {
        const auto place = adapters_.find(trainer);
        return place == adapters_.end() ? "" : place->second;
    }
    // The trainers of that adapter (empty: of the model) begin new sets.
    void forget_unnamed(const std::string& adapter);

    Oracle& oracle_;
    std::map<std::string, std::uint64_t> named_{};   // bytes -> the session that their call names
    std::map<std::string, std::string> labels_{};    // bytes -> the label in their call
    std::map<std::string, std::string> adapters_{};  // trainer -> the adapter that it brings
    std::string published_{};  // the label of the collected parts in the version that serves
    Set for_whichever_{};
    std::map<std::string, std::uint64_t> staged_in_{};  // bytes -> the session, as acknowledged
    std::optional<std::uint64_t> ending_{};             // the session whose end was ordered last
    std::map<std::uint64_t, Set> sessions_{};           // by number: calls that name it
    std::map<std::string, Set> unnamed_{};              // by trainer: calls that name none
    Set lacking_{};                                     // trainers that had a call refused
    std::set<std::uint64_t> begun_{};
    std::optional<TimePoint> all_told_at_{};
    // By adapter (empty: the model): when its trainers were told of a loss, by the refusal of a
    // call that names no session.
    std::map<std::string, TimePoint> told_at_{};
};

}  // namespace pitstop::sim
