// Writes a copy of the weights in host memory (shard_writer.h): copies, slices, converts and
// digests one piece at a time and checks it for non-finite values, all while it is in the cache,
// and then rests (pace.h).
//
// Thread: the background's; while no pass runs, additional threads of its own.
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
    // Makes the threads when work first needs a second one.
    TaskPool& threads();

    const StageArgs& args_;
    std::optional<TaskPool> threads_{};
};

}  // namespace pitstop::tp_worker
