// The ends of recent sessions, for callers that try to continue one of them.
//
// A call that names its session is told why the session ended. An unnamed call might belong to a
// session that has been lost. As a separate update, the call would commit only a part of a version.
// So unnamed calls are refused after a loss. The loss ends, and unnamed calls are accepted again,
// with the first begin, end or drop after a caller was told of the loss. (An earlier begin, end or
// drop may be another trainer's.) The loss also ends kLossQuiet after a caller was last told of it.
//
// Thread:  the loop thread only.
// Bounded: kEndedMax sessions.
#pragma once

#include "base/time.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace pitstop::tokenizer {

class EndedSessions {
  public:
    static constexpr std::size_t kEndedMax = 64;
    static constexpr auto kLossQuiet = std::chrono::minutes(5);

    struct Ended {
        std::uint64_t session = 0;
        std::string what{};     // its description: "session 7 of ... (3 buckets, ...)"
        std::string how{};      // how it ended: "was committed as epoch 4", "was dropped: ..."
        std::string adapter{};  // whose session it was; empty: the model's
    };
    void record(Ended ended);
    // Records that the latest session was lost, together with calls that name no session.
    void record_loss() {
        loss_ = ended_.back();
        told_.reset();
    }

    // Returns how that session ended; nothing if the session is unknown or too old.
    [[nodiscard]] std::optional<std::string> end_of(std::uint64_t session) const;

    // Returns whether an unnamed call for this adapter, or (empty) for none, may belong to the lost
    // session. A call that names no adapter may be a bucket of any session.
    [[nodiscard]] bool may_be_of_loss(const std::string& adapter) const {
        return adapter.empty() || (loss_ && loss_->adapter == adapter);
    }
    // Returns the refusal of an unnamed call, or nothing. tell_loss() also records that a caller
    // was told.
    [[nodiscard]] std::optional<std::string> loss(TimePoint now);
    [[nodiscard]] std::optional<std::string> tell_loss(TimePoint now);
    // Called when a caller begins, ends or drops a session. Ends the loss if a caller has been told
    // of it.
    void forget_told_loss() {
        if (told_) loss_.reset();
    }
    // Ends the loss once kLossQuiet has passed since a caller was last told of it.
    void expire_loss(TimePoint now) {
        if (told_ && now >= *told_ + kLossQuiet) loss_.reset();
    }
    // Returns the lost session whose calls had no name, or nothing.
    [[nodiscard]] const std::optional<Ended>& lost() const { return loss_; }

  private:
    static std::string text_of(const Ended& ended);

    std::deque<Ended> ended_{};
    std::optional<Ended> loss_{};
    std::optional<TimePoint> told_{};  // when an unnamed call was last refused for the loss
};

}  // namespace pitstop::tokenizer
