// The adapters of a rank from their stage to their end: made as their configuration says, committed
// for plans to name, with --keep-committed written to the disk, and forgotten.
//
// Thread:  the loop's, except for open().
// Bounded: by the scheduler, which says what to forget.
#pragma once

#include "base/result.h"
#include "messages/adapters.h"
#include "messages/weights.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/update/adapter_keeper.h"
#include "tp_worker/update/background.h"

#include <memory>
#include <string>

namespace pitstop::tp_worker {

// An adapter that a stage fills.
struct StagedAdapter {
    std::unique_ptr<Adapter> adapter{};
    std::string config{};  // its configuration's text
    std::string config_digest{};
};

class AdapterStore {
  public:
    // Both outlive the store.
    AdapterStore(Engine& engine, Background& background)
        : engine_(engine), background_(background) {}

    // Prepares for --keep-committed: from now on, committed versions are written.
    void keep_in(AdapterKeeper::Args args);

    // Reads the adapter's configuration, and makes the adapter. Thread: the background's. Errors:
    // it has no such configuration, or one that is not accepted; nothing is changed.
    [[nodiscard]] Result<StagedAdapter> open(const messages::UpdateSpec& spec) const;
    // From now on, plans may name the version.
    void commit(messages::AdapterId id, StagedAdapter staged);
    // No later plan names the version. The background frees its memory, because unmapping takes
    // time in proportion to its size.
    void forget(messages::AdapterId id);

  private:
    Engine& engine_;
    Background& background_;
    std::unique_ptr<AdapterKeeper> keeper_{};
};

}  // namespace pitstop::tp_worker
