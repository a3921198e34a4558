// The tensors of one call that this update has received before. A client that lost an answer
// repeats its call: equal bytes are accepted, different bytes are an error.
//
// The bytes are digested in resident form, and compared by digest without being written.
//
// Owns:   the digests of the repeated tensors, until problems() is called.
// Thread: the stage's.
#pragma once

#include "messages/version_digest.h"
#include "tp_worker/weights/shard_writer.h"

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

class RepeatedTensors {
  public:
    // Returns the job that digests the bytes. `first` is the digest of the tensor's first arrival,
    // and outlives this object; `index` is the tensor's index in the layout.
    [[nodiscard]] FillJob add(
        std::size_t index, const Incoming& again, std::span<const messages::PartDigest> first
    );

    // Returns a problem for each tensor whose bytes differ. REQUIRES: the jobs are done.
    [[nodiscard]] std::vector<std::string> problems() const;

  private:
    struct Repeat {
        std::string_view name{};
        std::span<const messages::PartDigest> first{};
        std::vector<messages::PartDigest> again{};
    };
    std::deque<Repeat> repeats_{};  // a job points into its repeat
};

// Returns whether both are digests of the same bytes. REQUIRES: both have the same parts.
[[nodiscard]] bool is_same(
    std::span<const messages::PartDigest> a, std::span<const messages::PartDigest> b
);

}  // namespace pitstop::tp_worker
