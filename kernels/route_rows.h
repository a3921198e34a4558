// Collects the choices of all layers' routers (router.h) for some tokens, as small ids:
//   y[i, l, j] = chosen[l, token_rows[i], j]
//
//   chosen      [L, >= T, k]           int32, each in [0, 256) or, with two bytes, in [0, 65536)
//   token_rows  [N]                    int32, each in [0, T); may repeat
//   y           [N, L, k, id_bytes]    little-endian; overlaps nothing
#pragma once

#include "kernels/tensor.h"

#include <cstdint>

namespace pitstop::kernels {

struct RouteRowsArgs {
    const std::int32_t* chosen = nullptr;
    std::int64_t layer_stride = 0;  // elements between the choices of two layers
    std::int64_t num_layers = 0;    // L
    std::int64_t per_token = 0;     // k
    const std::int32_t* token_rows = nullptr;
    std::int64_t num_rows = 0;  // N
    std::int64_t id_bytes = 1;  // or 2
    std::uint8_t* y = nullptr;
    Stream stream{};
};

void check(const RouteRowsArgs& args);
void route_rows_ref(const RouteRowsArgs& args);
void route_rows_cuda(const RouteRowsArgs& args);

// Adds how many of the first T tokens chose each expert, and copies the sums to y, if given:
//   counts[l, e] += |{(t, j): t < T, chosen[l, t, j] == e}|,  y = counts
//
//   chosen  as above, each in [0, E)
//   counts  [L, E]  int64
//   y       [L, E]  int64, or null; overlaps nothing
struct CountChoicesArgs {
    const std::int32_t* chosen = nullptr;
    std::int64_t layer_stride = 0;  // elements from a layer's choice to the next one's
    std::int64_t num_layers = 0;    // L
    std::int64_t per_token = 0;     // k
    std::int64_t num_tokens = 0;    // T
    std::int64_t num_experts = 0;   // E
    std::int64_t* counts = nullptr;
    std::int64_t* y = nullptr;
    Stream stream{};
};

void check(const CountChoicesArgs& args);
void count_choices_ref(const CountChoicesArgs& args);
void count_choices_cuda(const CountChoicesArgs& args);

}  // namespace pitstop::kernels
