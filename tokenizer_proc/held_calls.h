// Calls at the admin door that wait for an update, in the order of arrival.
//
// Thread:  the loop thread only.
// Bounded: kCallsMax calls, kBytesMax bytes of messages.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "tokenizer_proc/open_calls.h"
#include "tokenizer_proc/tree_update.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tokenizer {

// A call that waits for earlier calls, or until the collected update takes effect.
struct HeldCall {
    // For this long after its deadline, a call that lets generation continue can still get the
    // outcome of the update that it waits for. A call that takes its turn waits only until its
    // deadline, because it has not begun.
    static constexpr auto kGrace = TreeUpdate::kDropGrace;

    AdminCaller caller{};
    std::string_view what{};  // the call's type
    std::string adapter{};    // the adapter that the call names; empty: none
    TimePoint deadline{};
    bool brings_weights = false;
    bool is_unload = false;
    bool may_be_part = false;  // a part of a version whose calls name no session
    std::size_t bytes = 0;     // of the call's message
    std::function<Result<>(TimePoint now)> start{};

    // Returns whether the call waits for all earlier ones.
    [[nodiscard]] bool takes_turn() const { return brings_weights || is_unload; }
    [[nodiscard]] TimePoint waits_until() const {
        return deadline + (takes_turn() ? Duration{} : Duration{kGrace});
    }
    [[nodiscard]] bool is_late(TimePoint now) const { return now >= waits_until(); }
};

class HeldCalls {
  public:
    // The limit of all waiting calls together; a call that waits alone may be larger.
    static constexpr std::size_t kBytesMax = std::size_t{256} << 20;

    // Errors: kResourceExhausted.
    Result<> add(HeldCall call);

    [[nodiscard]] bool is_empty() const { return calls_.empty(); }
    [[nodiscard]] bool is_any_with_weights() const;
    // REQUIRES of both: !is_empty().
    [[nodiscard]] const HeldCall& first() const { return calls_.front(); }
    HeldCall take_first();
    std::vector<HeldCall> take_late(TimePoint now);
    std::vector<HeldCall> take_all();

    // Returns when the next call becomes late; TimePoint::max(): no call waits.
    [[nodiscard]] TimePoint next_deadline() const;

  private:
    std::deque<HeldCall> calls_{};
};

}  // namespace pitstop::tokenizer
