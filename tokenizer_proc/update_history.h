// The outcomes of the latest calls about weights, for status.
//
// Thread:  the loop thread only.
// Bounded: kShown outcomes.
#pragma once

#include "base/time.h"
#include "messages/status.h"
#include "messages/weights.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>

namespace pitstop::tokenizer {

class UpdateHistory {
  public:
    static constexpr std::size_t kShown = 16;

    // `what`: the call's type.
    void record(TimePoint now, std::string_view what, const messages::UpdateReply& reply);
    void report(TimePoint now, messages::StatusReply& reply) const;

  private:
    struct Past {
        TimePoint at{};
        messages::UpdateRecord record{};
    };
    std::deque<Past> past_{};
    std::int64_t num_updates_ = 0;
    std::int64_t num_failed_ = 0;
};

}  // namespace pitstop::tokenizer
