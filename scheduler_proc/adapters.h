// Knows which adapters this replica has, and which versions of them requests still use.
//
// A commit gives a name a new version, for requests that come from then on; those that are open
// keep theirs. A version that is nobody's any more, replaced or unloaded and without requests, is
// forgotten by the workers, between two plans: none that follows names it.
//
// Thread:  the loop thread only.
// Bounded: loaded_max names; versions by the open requests.
#pragma once

#include "base/result.h"
#include "messages/adapters.h"
#include "scheduler_proc/turn.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::scheduler {

// A version that a request has.
struct AdapterUse {
    messages::AdapterId id{};
    messages::AdapterVersion version{};
    std::string path{};  // the directory that it came from; empty: its tensors were sent
};

class Adapters {
  public:
    explicit Adapters(std::int64_t loaded_max) : loaded_max_(loaded_max) {}

    // The workers compute adapters up to this rank; 0: none.
    void open(std::int64_t rank_max) { rank_max_ = rank_max; }

    // Returns why an update of this adapter cannot begin, or nothing.
    [[nodiscard]] std::optional<Error> problem_of(const std::string& name) const;
    // The version that the workers know by this id serves its name from now on.
    void commit(AdapterUse loaded, TurnOutput& out);
    // Errors: kNotFound. Returns what was unloaded.
    [[nodiscard]] Result<AdapterUse> unload(const std::string& name, TurnOutput& out);

    // Returns what a request that names this adapter gets, and counts it. Errors: kNotFound, which
    // are loaded.
    [[nodiscard]] Result<AdapterUse> take(const std::string& name);
    // The request has ended.
    void give_back(messages::AdapterId id, TurnOutput& out);

    [[nodiscard]] std::int64_t num_requests(messages::AdapterId id) const;
    [[nodiscard]] std::vector<messages::AdapterStatus> status() const;  // by name
    // Returns what is wrong if so many open requests have each version, or nothing.
    [[nodiscard]] std::optional<std::string> audit(
        const std::map<messages::AdapterId, std::int64_t>& num_open
    ) const;

  private:
    struct Resident {
        AdapterUse use{};
        std::int64_t num_requests = 0;
        bool is_serving = false;  // new requests get it
    };
    void retire(Resident& resident, TurnOutput& out);
    [[nodiscard]] std::string names() const;

    std::int64_t loaded_max_;
    std::int64_t rank_max_ = 0;
    std::map<std::string, messages::AdapterId> serving_{};
    std::map<messages::AdapterId, Resident> residents_{};
};

}  // namespace pitstop::scheduler
