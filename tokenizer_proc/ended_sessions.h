// Knows how the latest sessions ended, for callers who go on with one of them.
//
// A call that names its session is told why that one is over. One that names none might be of a
// session that was lost meanwhile: it would be an update of its own, of a part that nobody meant
// to stand alone. So such calls are refused from the loss on. Once one of them, or an end, was told
// of it, the next begin, end or drop is of somebody who knows, and the loss is over; so it is when
// no such call comes for kLossQuiet. Before that a drop or an end may be another trainer's.
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
        std::string what{};  // describes it: "session 7 of ... (3 buckets, ...)"
        std::string how{};   // how it ended: "was committed as epoch 4", "was dropped: ..."
    };
    void record(Ended ended);
    // Calls without a name are lost with the session recorded last.
    void record_loss() {
        loss_ = ended_.back();
        told_.reset();
    }

    // Returns how that session ended; nothing: it is not known here, or too old.
    [[nodiscard]] std::optional<std::string> end_of(std::uint64_t session) const;

    // Returns what an unnamed call is refused with, or nothing. tell_loss(): it is.
    [[nodiscard]] std::optional<std::string> loss(TimePoint now);
    [[nodiscard]] std::optional<std::string> tell_loss(TimePoint now);
    // Somebody begins, ends or drops: whoever was told knows what he does. Nobody was: the loss
    // stays.
    void forget_told_loss() {
        if (told_) loss_.reset();
    }
    // Nobody who was told has come back for kLossQuiet.
    void expire_loss(TimePoint now) {
        if (told_ && now >= *told_ + kLossQuiet) loss_.reset();
    }
    // Returns the session that was lost with calls without a name, or nothing.
    [[nodiscard]] const std::optional<Ended>& lost() const { return loss_; }

  private:
    static std::string text_of(const Ended& ended);

    std::deque<Ended> ended_{};
    std::optional<Ended> loss_{};
    std::optional<TimePoint> told_{};  // when an unnamed call was refused last for it
};

}  // namespace pitstop::tokenizer
