// The adapters of a rank. A stage makes an adapter from its configuration, and a commit lets plans
// name it. --keep-committed writes it to the disk; --adapter-memory evicts and restores it. At last
// it is forgotten.
//
// Until its commit, a load uses memory in addition to --adapter-memory: at most that of one
// adapter, because evictions ordered earlier come first.
//
// Evictions and restores are carried out on a thread of their own, in the order given: reads of
// files wait for no stage.
//
// Thread:  the loop's, except for open() and finish().
// Bounded: by the scheduler, which orders what is evicted and forgotten.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "checkpoint/seen_files.h"
#include "messages/adapter_moves.h"
#include "messages/adapters.h"
#include "messages/update_orders.h"
#include "messages/weights.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/update/adapter_bytes.h"
#include "tp_worker/update/adapter_file.h"
#include "tp_worker/update/adapter_keeper.h"
#include "tp_worker/update/background.h"
#include "tp_worker/update/given_config.h"
#include "tp_worker/weights/weight_stage.h"

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace pitstop::tp_worker {

// An adapter that a stage fills.
struct StagedAdapter {
    std::unique_ptr<Adapter> adapter{};
    std::string config{};           // its configuration's text
    checkpoint::SeenFiles files{};  // of its directory, seen before they were read
    std::string config_digest{};
    std::string name{};
    bool is_pinned = false;

    // Fills in the vote's fields about an adapter. Does nothing if there is none.
    void describe_in(messages::WorkerStaged& vote) const;
};

class AdapterStore {
  public:
    struct Limits {
        std::int64_t bytes_max = 0;  // of adapters in memory (--adapter-memory); 0: no limit
        std::string directory{};     // for the files of evicted adapters
    };
    // `engine` and `background` outlive the store. Answers are sent through `background`.
    AdapterStore(Engine& engine, Background& background)
        : engine_(engine), background_(background) {}

    // Prepares for --keep-committed: from now on, committed versions are written.
    void keep_in(AdapterKeeper::Args args);
    // Prepares for --adapter-memory. Called before any adapter is loaded.
    void limit(Limits limits);

    // Reads the adapter's configuration, and makes the adapter. Thread: the background's. Errors:
    // the configuration is missing or not accepted, or the adapter has too many bytes; nothing is
    // changed.
    // `begins_as`: a committed version, whose configuration and bytes the new one begins with.
    // Errors: also kDataLoss: the rank does not have that version any more; kInvalidArgument: the
    // update brings another configuration; kAborted once `is_dropped` is set.
    [[nodiscard]] Result<StagedAdapter> open(
        const messages::UpdateSpec& spec,
        std::optional<messages::AdapterId> begins_as,
        const std::atomic<bool>& is_dropped
    ) const;
    // Ends a stage whose bytes have all arrived, and copies the adapter to the memory that steps
    // read. Thread: the background's. Errors: those of WeightStage::finish() and Engine::place();
    // kDataLoss if the files of its directory have changed since open().
    [[nodiscard]] Result<> finish(WeightStage& stage, const StagedAdapter& staged) const;
    // From now on, plans may name the version.
    void commit(messages::AdapterId id, StagedAdapter staged);
    // Evicts and restores versions, and answers for each restored one. No later plan names an
    // evicted version. A version whose file cannot be written stays in memory, with a warning and
    // an answer.
    void move(const messages::WorkerAdapters& order);
    // The version is about to be forgotten: from now on it does not count as pinned.
    void unpin(messages::AdapterId id);
    // No later plan names the version. Another thread frees its memory, because unmapping takes
    // time in proportion to its size.
    void forget(messages::AdapterId id);

  private:
    struct Version {
        std::string name{};
        bool is_pinned = false;
        std::int64_t bytes = 0;
        std::string config{};
        std::shared_ptr<AdapterBytes> kept{};  // for the keeper; null: the version is not kept
        // Written by a job of `moving_`; afterwards the keeper may read it.
        std::shared_ptr<AdapterFile> file = std::make_shared<AdapterFile>();
    };
    void wait_for_moves() const;
    [[nodiscard]] Result<StagedAdapter> open_as(
        messages::AdapterId version,
        const messages::UpdateSpec& spec,
        GivenConfig given,
        const std::atomic<bool>& is_dropped
    ) const;
    [[nodiscard]] Result<StagedAdapter> make(
        const messages::UpdateSpec& spec, GivenConfig given, const std::atomic<bool>& is_dropped
    ) const;
    [[nodiscard]] std::shared_ptr<Version> version_of(messages::AdapterId id) const;
    Result<> copy(messages::AdapterId id, const Version& version, Adapter& into) const;
    void evict(std::uint64_t order, messages::AdapterId id);
    void stay(
        const Version& version,
        const std::shared_ptr<Adapter>& adapter,
        const messages::WorkerNotEvicted& why
    );
    void restore(std::uint64_t order, messages::AdapterId id);
    [[nodiscard]] Result<> check_room(const StagedAdapter& staged) const;
    Result<> restore_from(messages::AdapterId id, const Version& version);

    Engine& engine_;
    Background& background_;
    Limits limits_{};
    std::unique_ptr<AdapterKeeper> keeper_{};
    mutable Mutex mutex_{};
    // shared with the jobs that move them
    std::map<messages::AdapterId, std::shared_ptr<Version>> versions_ GUARDED_BY(mutex_){};
    mutable Background moving_{};  // declared after the members that its jobs use
};

}  // namespace pitstop::tp_worker
