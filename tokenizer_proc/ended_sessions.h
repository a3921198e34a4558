// The ends of recent sessions, for callers that try to continue one of them.
//
// A call that names its session is told why the session ended. An unnamed call might belong to a
// session that has been lost. As a separate update, the call would commit only a part of a version.
// So unnamed calls are refused after a loss. The loss ends, and unnamed calls are accepted again,
// with the first begin, end or drop after a caller was told of the loss. (An earlier begin, end or
// drop may be another trainer's.) The loss also ends kLossQuiet after a caller was last told of it.
//
// The model and each adapter have losses of their own, because their trainers may be different.
//
// Thread:  the loop thread only.
// Bounded: kEndedMax sessions, and as many losses.
#pragma once

#include "base/time.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
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
    void record_loss();

    // Returns how that session ended; nothing if the session is unknown or too old.
    [[nodiscard]] std::optional<std::string> end_of(std::uint64_t session) const;

    // Returns the adapter of that session; empty: it was of the model's weights, or is unknown.
    [[nodiscard]] std::string adapter_of(std::uint64_t session) const;

    // Returns the refusal of an unnamed call for this adapter, or (empty) for none; or nothing. A
    // call that names no adapter may be a bucket of any session: of the lost ones, the model's goes
    // before adapters'. tell_loss() also records that a caller was told.
    [[nodiscard]] std::optional<std::string> loss(TimePoint now, const std::string& adapter = "");
    [[nodiscard]] std::optional<std::string> tell_loss(
        TimePoint now, const std::string& adapter = ""
    );
    // Called when a caller begins a session of this adapter (empty: of the model). Ends the loss if
    // a caller has been told of it.
    void forget_told_loss(const std::string& adapter);
    // Called when a caller ends or drops the session that was lost, without naming it. Ends the
    // losses of which a caller has been told. Returns whether there was one.
    bool forget_told_losses();
    // Ends each loss once kLossQuiet has passed since a caller was last told of it.
    void expire_losses(TimePoint now);
    // Returns a lost session whose calls had no name, or nothing; the model's goes before
    // adapters'.
    [[nodiscard]] std::optional<Ended> lost() const;

  private:
    struct Loss {
        Ended session{};
        std::optional<TimePoint> told{};  // when an unnamed call was last refused for the loss
    };
    static std::string text_of(const Ended& ended);
    [[nodiscard]] Loss* find_loss(TimePoint now, const std::string& adapter);

    std::deque<Ended> ended_{};
    std::map<std::string, Loss> losses_{};  // by adapter; first the model's, whose key is empty
};

}  // namespace pitstop::tokenizer
