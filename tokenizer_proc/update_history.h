// The outcomes of the latest calls about weights, for status: those of the model's apart from those
// of adapters, so that many loads of adapters leave the model's updates on record.
//
// Thread:  the loop thread only.
// Bounded: kShown outcomes of the model, and as many of adapters.
#pragma once

#include "base/time.h"
#include "messages/status.h"
#include "messages/weights.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

namespace pitstop::tokenizer {

class UpdateHistory {
  public:
    static constexpr std::size_t kShown = 16;

    // `what`: the call's type. An unload's outcome has the adapter's name and version.
    void record(TimePoint now, std::string_view what, const messages::UpdateReply& reply);
    void report(TimePoint now, messages::StatusReply& reply) const;

  private:
    struct Past {
        TimePoint at{};
        messages::UpdateRecord record{};
    };
    struct Outcomes {
        std::deque<Past> past{};
        std::int64_t num_done = 0;
        std::int64_t num_failed = 0;
    };
    // Adds the outcomes to the end of `shown`.
    static void show(
        TimePoint now, const Outcomes& outcomes, std::vector<messages::UpdateRecord>& shown
    );

    Outcomes model_{};
    Outcomes adapters_{};
};

}  // namespace pitstop::tokenizer
