#include "kernels/route_rows.h"

#include "base/check.h"

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

}  // namespace pitstop::kernels
