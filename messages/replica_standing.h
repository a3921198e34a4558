// A replica's report of its pause, its released memory and its weights, sent on each change. The
// door relies on these reports, and has no timer of its own for pauses.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/memory.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace pitstop::messages {

struct ReplicaStanding {
    static constexpr std::string_view kType = "replica_standing";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: sent when any of these fields changes, before the "
        "answers to the calls that changed it. Until the first such message, the replica counts as "
        "running, with everything resident.";
    ReplicaId replica{};
    bool is_paused = false;
    std::int64_t pauses_expired = 0;
    std::vector<MemoryTag> released{};
    bool has_weights = true;

    template <class F>
    void fields(F&& f) {
        f("replica", replica, "the sender");
        f("is_paused",
          is_paused,
          "true from the order to pause until the pause's end, including the wait for running "
          "requests");
        f("pauses_expired", pauses_expired, "pauses that max_pause_s has ended, since the start");
        f("released", released, "tags that are not resident, except memory lent to an update");
        f("has_weights", has_weights, "false: only a complete update lets generation continue");
    }
    friend bool operator==(const ReplicaStanding&, const ReplicaStanding&) = default;
};

}  // namespace pitstop::messages
