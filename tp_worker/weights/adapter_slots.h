// The weights of an adapter, derived from its base model's slots and its configuration: for each
// adapted module a pair of matrices, A [rank, in] and B [out, rank], both fp32. Layout, stage and
// digest follow from the slots as for a model (slot.h).
//
// A rank has the parts of a pair that its part of the base's product needs. If the base's rows are
// split, B's are split and A is whole. If the base's columns are split, A's are split and B is
// whole. The sum over the ranks that follows such a product includes the adapter's part. A rank
// without an expert (--ep) has neither matrix of its pair.
//
// The pair of an expert may be left out: then the adapter does not change that expert. With
// "all-linear" the pair of a router may be left out, too: in transformers 5 a router is a parameter
// and no linear layer.
#pragma once

#include "base/result.h"
#include "tp_worker/config/module_search.h"
#include "tp_worker/weights/slot.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// A weight of the base model that adapters may change.
struct AdaptableWeight {
    WeightId weight{};
    bool is_of_expert = false;  // one of the experts among which a router chooses
    bool is_of_router = false;  // a router, or the gate of a shared expert
};

struct AdaptedModule {
    WeightId base{};  // of the base model's slots
    WeightId a{};     // of the adapter's slots
    WeightId b{};
    std::int64_t rank = 0;
    float scale = 0;
};

struct AdapterSlots {
    WeightSlots slots{};
    std::vector<AdaptedModule> modules{};

    // The search is over the base's modules. Errors: the search's; naming the modules:
    // kInvalidArgument if no module is adapted, or one has a rank over `rank_max`; kUnsupported if
    // a module is not adaptable.
    static Result<AdapterSlots> make(
        const WeightSlots& base,
        std::span<const AdaptableWeight> adaptable,
        ModuleSearch& search,
        std::int64_t rank_max
    );
};

}  // namespace pitstop::tp_worker
