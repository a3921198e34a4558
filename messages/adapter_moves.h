// The workers' reports of evictions that failed, and of restores (--adapter-memory). An eviction
// that succeeds has no answer (adapters.h).
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "messages/fields.h"
#include "messages/verdict.h"

#include <concepts>
#include <cstdint>
#include <string_view>

namespace pitstop::messages {

struct WorkerNotEvicted {
    static constexpr std::string_view kType = "worker_not_evicted";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: the answer to `evict` of `worker_adapters` if the version's "
        "bytes could not be written to a file. They stay in this rank's memory.";
    Rank rank{};
    std::uint64_t order = 0;
    AdapterId id{};
    Verdict verdict{};

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "the sender");
        f("order", order, "the order's number");
        f("id", id, "the update that loaded it");
        verdict.fields_in(f, "why the version is not evicted");
    }
};

// A worker's report about a version that it was ordered to evict or to restore.
template <class Message>
concept AdapterMove =
    std::same_as<Message, WorkerNotEvicted> || std::same_as<Message, WorkerRestored>;

}  // namespace pitstop::messages
