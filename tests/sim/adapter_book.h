// The output that requests with adapters must get: the model's, with the version that each span
// names, over KV that versions of the same name computed. Every rank must hold that version. A
// request without an adapter must get nothing of an adapter. Derived from docs/adapters.md and from
// the ranks' content: schedulers' own books are not used.
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "messages/generation.h"
#include "messages/verdict.h"
#include "tests/sim/weights_id.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::sim {

class AdapterBook {
  public:
    using MaybeId = std::optional<messages::AdapterId>;
    using Problem = std::optional<std::string>;

    // The weights of a pass that uses the adapter's weights beside the model's.
    [[nodiscard]] static WeightsId together(WeightsId model, WeightsId adapter);

    struct Loaded {
        std::string name{};
        Epoch number{};
        WeightsId weights{};
        messages::AdapterPolicy policy = messages::AdapterPolicy::kFinish;
        bool is_pinned = false;
        MaybeId begins_as{};  // the version that it changes, or to which a rollback returns
        bool is_rollback = false;
        bool is_sparse = false;  // elements of tensors
    };
    // A rank makes the version available. All ranks must hold the same weights for it.
    [[nodiscard]] Problem committed(messages::AdapterId id, const Loaded& loaded);
    // Replicas are told to unload the name.
    void unloaded(const std::string& name) {
        newest_.erase(name);
        previous_.erase(name);
    }
    // The name's version that new requests get. Absent: it is not loaded.
    [[nodiscard]] MaybeId newest(const std::string& name) const;
    // The version's weights; nothing if no rank has committed it.
    [[nodiscard]] std::optional<WeightsId> weights_of(MaybeId id) const;
    [[nodiscard]] std::optional<WeightsId> weights_of(Epoch number) const {
        return weights_of(id_of(number));
    }
    // The version that the newest one of the name replaced. Absent: a rollback has none.
    [[nodiscard]] MaybeId previous(const std::string& name) const;
    // The version that open requests move to, once a rank has committed it. Absent: none move.
    [[nodiscard]] MaybeId successor(messages::AdapterId id) const;
    // A rank evicts the version.
    [[nodiscard]] Problem problem_of_eviction(messages::AdapterId id) const;
    // A request for this name is refused while the tree is at rest.
    [[nodiscard]] Problem problem_of_refusal(const std::string& name, const messages::Verdict& why)
        const;
    // A row of version `row` attends to an entry of KV of version `entry`. `is_cached`: the request
    // begins on it.
    [[nodiscard]] Problem problem_of_kv(MaybeId row, MaybeId entry, bool is_cached) const;
    // The last sample of a request's output `index`, with the oldest version in its KV.
    void sampled(RequestKey key, std::int64_t index, MaybeId id, MaybeId kv_min);

    // The weights of an output that names this version.
    [[nodiscard]] WeightsId with(
        WeightsId model, const std::optional<messages::AdapterVersion>& said
    ) const;
    [[nodiscard]] Problem problem_of(
        const messages::TokenizedRequest& request, std::int64_t index, const messages::Span& span
    );

    std::int64_t num_tokens = 0;      // with an adapter
    std::int64_t num_over_older = 0;  // of these, over KV of an older version
    std::int64_t num_loads = 0;       // committed, with rollbacks and partial updates
    std::int64_t num_rollbacks = 0;
    std::int64_t num_parts = 0;         // partial updates
    std::int64_t num_sparse_parts = 0;  // of these, sparse ones
    std::int64_t num_evictions = 0;
    std::int64_t num_not_evicted = 0;
    std::int64_t num_restores = 0;
    std::int64_t num_forgotten = 0;

  private:
    struct Sampled {
        MaybeId id{};
        MaybeId kv_min{};
    };
    [[nodiscard]] MaybeId id_of(Epoch number) const;
    [[nodiscard]] Problem problem_of_beginning(const Loaded& loaded) const;
    // REQUIRES: it begins as a version of the book.
    [[nodiscard]] Problem problem_of_pin(const Loaded& loaded) const;
    // Returns whether requests may continue with their KV through all updates between the two.
    [[nodiscard]] bool may_continue(messages::AdapterId from, messages::AdapterId to) const;

    std::map<messages::AdapterId, Loaded> versions_{};
    std::map<std::string, messages::AdapterId> newest_{};  // by name; not unloaded
    // By name: the version that the newest one replaced.
    std::map<std::string, messages::AdapterId> previous_{};
    std::map<messages::AdapterId, messages::AdapterId> successors_{};
    std::map<Epoch, messages::AdapterId> ids_{};
    std::map<RequestKey, std::vector<Sampled>> sampled_{};
};

}  // namespace pitstop::sim
