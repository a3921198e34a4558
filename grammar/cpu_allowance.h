// The CPU time that a request may spend on following its grammar.
//
// The parses of an ambiguous grammar may multiply as the output grows, and rank 0 follows all
// outputs between steps. A request may use kMax at once. Each token that is drawn or drafted for it
// adds kPerToken, up to kMax. So it delays other requests by at most kPerToken per token on
// average, by kMax at a time, and by the last call in addition.
//
// With a vocabulary of 151,680 tokens a token of a schema takes 20 us (median), and one in a
// hundred takes 6 to 8 ms (pitstop_grammar_bench, AMD EPYC 9004).
//
// The matchers of one request, and their copies for drafts, share its allowance. A matcher that
// replays a retracted request's output uses none of it, so the request ends as it would have ended
// without the retraction.
//
// Thread: one.
#pragma once

#include "base/time.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace pitstop::grammar {

class CpuAllowance {
  public:
    static constexpr Duration kMax = std::chrono::milliseconds(250);
    static constexpr Duration kPerToken = std::chrono::milliseconds(4);

    void add(Duration time) { left_ = std::min(left_ + time, kMax); }
    void use(Duration time) { left_ -= time; }
    // Returns whether the request has used more than it may. Its grammar then allows no token.
    [[nodiscard]] bool is_used_up() const { return left_ < Duration::zero(); }
    [[nodiscard]] Duration left() const { return left_; }

    // Called when a matcher begins to follow the request's output. Returns whether another did
    // before: the request was retracted.
    [[nodiscard]] bool begin() { return std::exchange(has_begun_, true); }

  private:
    Duration left_ = kMax;
    bool has_begun_ = false;
};

}  // namespace pitstop::grammar
