// The experts to which the simulator's model routes tokens, and the rows of routes that a request
// must get. A token's row has the experts of its pass: those that the request brings, or else the
// router's choice. The choice depends on the token's context and on the version that the row's span
// names.
#pragma once

#include "base/ids.h"
#include "messages/generation.h"
#include "messages/routes.h"
#include "tests/sim/weights_id.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace pitstop::sim {

class RouteBook {
  public:
    using Problem = std::optional<std::string>;
    using Row = std::vector<std::uint8_t>;
    using WeightsAt = std::function<WeightsId(Epoch)>;

    // The layers of the model that have no experts.
    static const std::vector<std::int64_t>& dense_layers();
    // Returns a row that a router may choose, derived from `number`.
    [[nodiscard]] static Row row_of(const messages::RouteShape& shape, std::uint64_t number);
    // Returns the router's choice for the last token of a context. `chain` hashes the context's
    // tokens, `brought` the routes that requests brought for them (with_brought()).
    [[nodiscard]] static Row chosen(
        const messages::RouteShape& shape,
        std::uint64_t chain,
        std::uint64_t brought,
        WeightsId weights
    );
    // Returns the row that the request brings for a token; empty: none.
    [[nodiscard]] static std::span<const std::uint8_t> brought_by(
        const messages::TokenizedRequest& request,
        const messages::RouteShape& shape,
        std::int64_t position
    );
    // Returns the hash of the rows that the request brings up to this token; `before`: up to the
    // previous token. 0: none.
    [[nodiscard]] static std::uint64_t with_brought(
        std::uint64_t before,
        const messages::TokenizedRequest& request,
        const messages::RouteShape& shape,
        std::int64_t position
    );

    // A prefill of the request begins, before it has any output. Rows of an earlier prefill do not
    // count.
    void begins(RequestKey key) { computed_.erase(key); }
    // A pass of the request computed a token of its context under this version.
    void computed(RequestKey key, std::int64_t position, Epoch epoch);

    // Returns what is wrong with the chunk's rows, or nothing. `context`: the request's tokens up
    // to the chunk's last.
    [[nodiscard]] Problem problem_of(
        const messages::TokenizedRequest& request,
        const messages::OutputChunk& chunk,
        std::span<const TokenId> context,
        const WeightsAt& weights_at
    );

    std::int64_t num_rows_checked = 0;
    std::int64_t num_brought_checked = 0;
    std::int64_t num_versions_mixed = 0;  // requests whose rows are of several versions

  private:
    // The rows that a request has got.
    struct Told {
        std::int64_t end = 0;  // the token after those that have rows
        std::set<Epoch> epochs{};
    };
    [[nodiscard]] Problem problem_of_rows(
        const messages::TokenizedRequest& request,
        const messages::Routes& routes,
        std::span<const TokenId> context,
        const WeightsAt& weights_at
    );

    std::map<RequestKey, std::vector<std::set<Epoch>>> computed_{};  // by token
    std::map<RequestKey, Told> told_{};
};

}  // namespace pitstop::sim
