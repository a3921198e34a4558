// Answers requests to read the live weights: a tensor's bytes, and the digests of all tensors.
//
// Thread:  the loop's; the background reads.
// Bounded: Background::offer().
#pragma once

#include "messages/frames.h"
#include "messages/weight_reads.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/update/background.h"
#include "tp_worker/weights/pace.h"

#include <vector>

namespace pitstop::tp_worker {

class WeightReads {
  public:
    // All outlive the jobs that this gives to the background.
    WeightReads(Engine& engine, Pace& pace, Background& background)
        : engine_(engine), pace_(pace), background_(background) {}

    // Whether a direct update writes the live copy.
    enum class Live { kAtRest, kBeingWritten };
    // Both functions return the answers that exist at once; the background sends the others.
    [[nodiscard]] std::vector<messages::Frames> read(
        const messages::WorkerReadTensor& order, Live live
    );
    [[nodiscard]] std::vector<messages::Frames> digest(
        const messages::WorkerDigest& order, Live live
    );

  private:
    Engine& engine_;
    Pace& pace_;
    Background& background_;
};

}  // namespace pitstop::tp_worker
