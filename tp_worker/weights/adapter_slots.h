// What the weights of an adapter are, from the slots of its base model and its configuration: a
// pair of matrices for each module that it adapts, A [rank, in] and B [out, rank], both fp32.
// Layout, stage and digest follow from the slots as for a model (slot.h).
//
// A rank holds of each pair what its part of the base's product needs: where the base's rows are
// split, B's are, and A is whole; where its columns are split, A's are, and B is whole. The sum
// over the ranks that follows such a product sums the adapter's part, too.
#pragma once

#include "base/result.h"
#include "tp_worker/config/adapter_config.h"
#include "tp_worker/weights/slot.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

struct AdaptedModule {
    WeightId base{};  // of the base model's slots
    WeightId a{};     // of the adapter's
    WeightId b{};
    std::int64_t rank = 0;
    float scale = 0;
};

struct AdapterSlots {
    WeightSlots slots{};
    std::vector<AdaptedModule> modules{};

    // `products` are the base's weights that may be adapted. Errors: kInvalidArgument, no module is
    // adapted, or one with a rank over `rank_max`; kUnsupported, a module that is none of them;
    // each is named.
    static Result<AdapterSlots> make(
        const WeightSlots& base,
        std::span<const WeightId> products,
        const AdapterConfig& config,
        std::int64_t rank_max
    );
};

}  // namespace pitstop::tp_worker
