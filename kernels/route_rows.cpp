#include "kernels/route_rows.h"

#include "base/check.h"

#include <algorithm>

namespace pitstop::kernels {

void check(const RouteRowsArgs& args) {
    CHECK(args.num_layers >= 1 && args.per_token >= 1 && args.num_rows >= 0);
    CHECK(args.id_bytes == 1 || args.id_bytes == 2);
    CHECK(args.chosen != nullptr && args.layer_stride >= args.per_token);
    CHECK(args.num_rows == 0 || (args.token_rows != nullptr && args.y != nullptr));
}

void route_rows_ref(const RouteRowsArgs& args) {
    check(args);
    std::uint8_t* to = args.y;
    for (std::int64_t i = 0; i < args.num_rows; ++i) {
        for (std::int64_t l = 0; l < args.num_layers; ++l) {
            const std::int32_t* const from =
                args.chosen + l * args.layer_stride + args.token_rows[i] * args.per_token;
            for (std::int64_t j = 0; j < args.per_token; ++j) {
                *to++ = static_cast<std::uint8_t>(from[j] & 0xff);
                if (args.id_bytes == 2) *to++ = static_cast<std::uint8_t>(from[j] >> 8 & 0xff);
            }
        }
    }
}

void check(const CountChoicesArgs& args) {
    CHECK(args.num_layers >= 1 && args.per_token >= 1 && args.num_experts >= 1);
    CHECK(args.num_tokens >= 0 && args.layer_stride >= args.num_tokens * args.per_token);
    CHECK(args.chosen != nullptr && args.counts != nullptr);
}

void count_choices_ref(const CountChoicesArgs& args) {
    check(args);
    const std::int64_t num = args.num_tokens * args.per_token;
    for (std::int64_t l = 0; l < args.num_layers; ++l) {
        const std::int32_t* const chosen = args.chosen + l * args.layer_stride;
        std::int64_t* const counts = args.counts + l * args.num_experts;
        for (std::int64_t i = 0; i < num; ++i) ++counts[chosen[i]];
    }
    if (args.y == nullptr) return;
    std::copy_n(args.counts, args.num_layers * args.num_experts, args.y);
}

}  // namespace pitstop::kernels
