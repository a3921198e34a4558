// Tracks calls without a session that take no effect (a loss), and the callers that know of it.
//
// The call that would let generation continue is refused once. From then until generation
// continues, only a whole model takes effect. A new pause forgets the loss only if a caller was
// told of it by such a refusal: few callers read a pause's answer.
//
// A caller who does not know of a loss may end it. So a later call with the label of lost calls
// restores the loss, once: the call may be another part of the lost version.
//
// Thread:  the loop thread only.
// Bounded: one loss, and the latest kLabelsMax that named a label.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/status.h"
#include "tokenizer_proc/replica_standings.h"
#include "tokenizer_proc/update_coordinator.h"

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace pitstop::tokenizer {

class LostCalls {
  public:
    // While generation runs, partial updates are refused until none has arrived for this long.
    static constexpr auto kQuiet = std::chrono::minutes(5);
    static constexpr std::size_t kLabelsMax = 64;

    // REQUIRES: both arguments outlive this object.
    LostCalls(const UpdateCoordinator& updates, const ReplicaStandings& standings)
        : updates_(updates), standings_(standings) {}

    [[nodiscard]] bool is_any() const { return loss_.has_value(); }
    // Returns whether no caller has been refused for the loss yet.
    [[nodiscard]] bool is_untold() const { return loss_ && !loss_->is_told; }

    // A collection was dropped. `closing`: the peer whose call replaces or commits it, if any.
    void record(
        TimePoint now, const LostCollection& lost, const std::optional<std::string>& closing
    );
    // A call was refused that may be a part of a version, while no call had been collected.
    // REQUIRES: !is_any().
    void record_missed_part(TimePoint now, const Error& why);
    // No collected calls were lost. But a trainer may still send calls that should be collected,
    // and each would become an update of its own.
    void record_standstill(TimePoint now, std::string why);
    // Records that the previous tree ended while it had a collection.
    void record_of_previous_tree(TimePoint now, const std::string& why);

    // Ends the loss, because all tensors were sent again.
    void end() { loss_.reset(); }
    // Ends the loss of a part that was refused before a session for unnamed calls began.
    void end_missed_part() {
        if (loss_ && loss_->is_missed_part) loss_.reset();
    }
    // Ends the loss, if a caller was told of it: generation continues with the previous version.
    void end_if_told() {
        if (loss_ && loss_->is_told) loss_.reset();
    }
    void expire(TimePoint now);
    // Forgets a loss with the label of the serving version, unless the loss was under that epoch.
    void forget_labels_of_version();

    // Refuses one call that would let generation continue; the next such call passes. If calls were
    // collected between the two, the next call is refused, too, and the caller of this function
    // must drop the collection.
    Result<> check_continue(TimePoint now, const std::string& peer);
    // Refuses a partial update whose trainer does not know of the loss, or ignores it.
    Result<> check_late_part(TimePoint now, const std::string& label);
    // Restores the loss of calls with this label, if there was one.
    void recall(TimePoint now, const std::string& label);
    // Returns the text that a pause's answer adds. A pause of a running tree also ends a loss for
    // which a caller was refused.
    [[nodiscard]] std::string note_for_pause();

    // Returns the loss for the status, or nothing.
    [[nodiscard]] std::optional<messages::LostCalls> report(TimePoint now) const;

  private:
    struct Loss {
        messages::LostCalls calls{};
        std::string label{};  // the label in the lost calls; empty: they had none
        std::string what{};   // a text such as "3 calls ... take no effect"
        TimePoint at{};
        TimePoint refused_at{};  // when a call was last refused because of the loss
        bool is_told = false;    // a call that lets generation continue was refused
        // a call was refused that may be another part of the version
        bool is_part_refused = false;
        bool is_missed_part = false;  // no call had been collected: the first call was refused
        std::string told_peer{};      // another peer that knows of the loss
    };
    [[nodiscard]] Error error() const;
    void remember();
    // Records that a call with `label`, or a collection of such calls, is refused for the loss.
    void tell(TimePoint now, const std::string& label);

    const UpdateCoordinator& updates_;
    const ReplicaStandings& standings_;
    std::optional<Loss> loss_{};
    // losses by label, with the epoch that served at the loss
    std::map<std::string, std::pair<Epoch, Loss>> by_label_{};
};

}  // namespace pitstop::tokenizer
