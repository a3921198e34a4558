// The bytes of a committed version for the thread that writes them to the directory of
// --keep-committed: those in memory, or, once the version is evicted, those in its file. So the
// writing thread keeps no memory that an eviction frees.
//
// Thread:  any.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "tp_worker/model/adapters.h"
#include "tp_worker/update/adapter_file.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace pitstop::tp_worker {

class AdapterBytes {
  public:
    explicit AdapterBytes(std::shared_ptr<const Adapter> adapter)
        : layout_(adapter->layout()), memory_(std::move(adapter)) {}

    [[nodiscard]] const WeightLayout& layout() const { return layout_; }
    // Reads bytes from `begin` on. Errors: those of AdapterFile::read_at().
    Result<> read(std::int64_t begin, std::span<std::byte> out) const;
    // From now on the bytes come from the file. Waits for a read that is under way. REQUIRES: the
    // file has all bytes.
    void leave_memory(std::shared_ptr<const AdapterFile> file);

  private:
    WeightLayout layout_;
    mutable Mutex mutex_{};
    std::shared_ptr<const Adapter> memory_ GUARDED_BY(mutex_);
    std::shared_ptr<const AdapterFile> file_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
