// Fills a copy in host memory that will be uploaded to a GPU: one of the weights (--update-mode
// host) or an adapter (shard_writer.h). Works like the writer of host memory, except that tensors
// that a sender has on the GPU are read from there, and so are kept tensors whose live copy is
// another one than the target.
#pragma once

#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/host_writer.h"

#include <cstddef>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

class HostStageWriter : public ShardWriter {
  public:
    // Both must outlive this object.
    HostStageWriter(const StageArgs& args, PinnedPieces& pieces)
        : args_(args), pieces_(pieces), host_(args) {}

    Filled fill(std::vector<FillJob> jobs, Keep keep) override;
    Result<Duration> fill_target(std::span<const std::byte> bytes) override {
        return host_.fill_target(bytes.first(static_cast<std::size_t>(args_.layout.bytes())));
    }
    void copy_live(const WeightTensor& tensor) override;
    void write(const WeightTensor& tensor, const ShardElements& elements) override {
        host_.write(tensor, elements);
    }
    std::int64_t count_different(const WeightTensor& tensor, const ShardElements& elements)
        override {
        return host_.count_different(tensor, elements);
    }

  private:
    Filled fill_from_gpu(FillJob job);

    const StageArgs& args_;
    PinnedPieces& pieces_;
    HostWriter host_;
    std::vector<std::byte> fetched_{};  // a sender's tensor, copied from the GPU
};

}  // namespace pitstop::tp_worker
