// The adapters of this replica, and the adapter versions that open requests use.
//
// A commit gives a name a new version for later requests. Open requests keep the old version or
// move to the new one, as the caller of the update chose. When a version no longer serves and no
// request uses it, the workers free it between two plans: no later plan names it. The version that
// was replaced last is retained for a rollback until the next stage of its name begins.
//
// An adapter is lost if a restart or a restore could not read it. Requests for a lost adapter get
// an error that names it, never the base model's output.
//
// Thread:  the loop thread only.
// Bounded: loaded_max names, with two versions each; at most one version more per open request.
#pragma once

#include "base/result.h"
#include "messages/adapters.h"
#include "scheduler_proc/adapter_places.h"
#include "scheduler_proc/scheduler_config.h"
#include "scheduler_proc/turn.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::scheduler {

// An adapter's version, as requests use it.
struct AdapterUse {
    messages::AdapterId id{};
    messages::AdapterVersion version{};
    std::string path{};  // the directory it was loaded from; empty: the client sent its tensors
    std::string config_digest{};
    std::int64_t bytes = 0;       // of its resident tensors, summed over ranks
    std::int64_t rank_bytes = 0;  // of its memory, on the rank that needs most
    bool is_pinned = false;
};

class Adapters {
  public:
    explicit Adapters(const SchedulerConfig& config);

    // The workers compute adapters of up to this rank; 0: no adapters.
    void open(std::int64_t rank_max) { rank_max_ = rank_max; }

    // Returns why this update of an adapter cannot begin, or nothing.
    [[nodiscard]] std::optional<Error> problem_of(const messages::UpdateSpec& spec) const;
    // Returns the version to which a rollback returns. Errors: kNotFound: no version serves;
    // kFailedPrecondition: none is retained; kResourceExhausted.
    [[nodiscard]] Result<AdapterUse> previous(const std::string& name) const;
    // An update of the name is staged: its previous version is no longer retained.
    void forget_previous(const std::string& name, TurnOutput& out);
    // The loaded version serves its name from now on. The workers know the version by its id.
    void commit(AdapterUse loaded, TurnOutput& out);
    // Returns the version of this name that is lost, which an unload gives up; or nothing.
    [[nodiscard]] std::optional<messages::AdapterVersion> lost_version(const std::string& name
    ) const;
    // Returns the unloaded version. Errors: kNotFound.
    [[nodiscard]] Result<AdapterUse> unload(const std::string& name, TurnOutput& out);

    // Returns the version for a request that names this adapter, and counts the request. Errors:
    // kNotFound; the text lists the loaded adapters.
    [[nodiscard]] Result<AdapterUse> take(const std::string& name);
    // Counts one output token of a request of the version, unless its name was unloaded since.
    void count_token(messages::AdapterId id);
    // Returns the version that new requests of this name get, or nothing.
    [[nodiscard]] std::optional<messages::AdapterId> serving(const std::string& name) const;
    // The versions that new requests get.
    [[nodiscard]] const std::set<messages::AdapterId>& all_serving() const { return all_serving_; }
    // Returns the version that new requests of this name get. REQUIRES: a version serves the name.
    [[nodiscard]] const AdapterUse& served(const std::string& name) const {
        return residents_.at(serving_.at(name).id).use;
    }
    // An open request of version `from` continues with the version that serves the name. Returns
    // the new version. REQUIRES: a version serves the name.
    AdapterUse move(messages::AdapterId from, TurnOutput& out);
    // The versions that are in the workers' memory.
    [[nodiscard]] AdapterPlaces& places() { return places_; }
    [[nodiscard]] const AdapterPlaces& places() const { return places_; }
    // Record a rank's answer. Return false if the scheduler had not asked for it. A version that
    // could not be evicted no longer counts as evicted.
    bool record(TimePoint now, const messages::WorkerNotEvicted& answer, TurnOutput& out);
    bool record(TimePoint /*now*/, const messages::WorkerRestored& answer, TurnOutput& out) {
        return places_.record(answer, out);
    }
    // Evicts and restores versions. `in_use`: the versions of requests that started. Returns the
    // versions whose waiting requests end with an error; a lost version no longer serves.
    std::vector<AdapterPlaces::Failure> advance(
        TimePoint now, std::set<messages::AdapterId> in_use, TurnOutput& out
    );
    // Called when a request of the version has ended.
    void give_back(messages::AdapterId id, TurnOutput& out);

    [[nodiscard]] std::int64_t num_requests(messages::AdapterId id) const;
    [[nodiscard]] std::vector<messages::AdapterStatus> status() const;  // by name
    [[nodiscard]] std::vector<messages::LostAdapter> lost() const;      // by name
    // Returns what is wrong, or nothing. `num_open`: the number of open requests of each version.
    [[nodiscard]] std::optional<std::string> audit(
        const std::map<messages::AdapterId, std::int64_t>& num_open
    ) const;

  private:
    struct Resident {
        AdapterUse use{};
        messages::AdapterId counted_since{};  // Counts::since when it was committed
        std::int64_t num_requests = 0;
        bool is_serving = false;   // new requests get it
        bool is_retained = false;  // a rollback returns to it
    };
    // A name that new requests may use.
    struct Serving {
        messages::AdapterId id{};
        std::optional<messages::AdapterId> previous{};  // retained
    };
    // The counts of a name since it was last unloaded.
    struct Counts {
        messages::AdapterId since{};  // the first version that they include
        std::int64_t num_loads = 0;
        std::int64_t num_requests = 0;
        std::int64_t num_output_tokens = 0;
        std::int64_t num_evictions = 0;
    };
    void lose(messages::AdapterId id, TurnOutput& out);
    // Returns the counts that include this version; null: its name was unloaded since.
    [[nodiscard]] Counts* counts_of(messages::AdapterId id);
    // The entry that the launcher keeps and that later error texts name.
    [[nodiscard]] static messages::LostAdapter lost_of(const AdapterUse& use);
    void retire(Resident& resident, TurnOutput& out);
    void free_unused(Resident& resident, TurnOutput& out);
    [[nodiscard]] std::string names() const;
    [[nodiscard]] Error not_loaded(const std::string& name) const;

    std::int64_t loaded_max_;
    std::int64_t rank_max_ = 0;
    std::map<std::string, Serving> serving_{};
    std::map<std::string, Counts> counts_{};       // of names that serve, or were lost since
    std::set<messages::AdapterId> all_serving_{};  // the ids in serving_, for each step
    // adapters that are lost, and have been neither loaded nor unloaded since
    std::map<std::string, messages::LostAdapter> lost_{};
    std::map<messages::AdapterId, Resident> residents_{};
    AdapterPlaces places_;
};

}  // namespace pitstop::scheduler
