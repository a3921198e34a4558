// Writes a copy of the weights in host memory (shard_writer.h): a piece at a time is copied,
// sliced, converted, digested and looked at for non-finite values while it is in the cache, then a
// rest (pace.h).
//
// Thread: the background's, and while no pass runs others of its own beside it.
#pragma once

#include "base/task_pool.h"
#include "tp_worker/weights/shard_writer.h"

namespace pitstop::tp_worker {

class HostWriter : public ShardWriter {
  public:
    explicit HostWriter(const StageArgs& args) : args_(args) {}

    Filled fill(std::vector<FillJob> jobs, Keep keep) override;
    Result<Duration> fill_target(std::span<const std::byte> bytes) override;
    void copy_live(const WeightTensor& tensor) override;
    void write(const WeightTensor& tensor, const ShardElements& elements) override;
    std::int64_t count_different(const WeightTensor& tensor, const ShardElements& elements)
        override;

  private:
    // Makes them with the first work that is worth a second thread.
    TaskPool& threads();

    const StageArgs& args_;
    std::optional<TaskPool> threads_{};
};

}  // namespace pitstop::tp_worker
