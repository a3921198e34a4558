// Tests how the choices of all layers become rows of routes.
#include "kernels/route_rows.h"

#include "tests/kernels/backend.h"

namespace pitstop::kernels::test {
namespace {

class RouteRows : public OnBackend {};
PITSTOP_ON_BACKENDS(RouteRows, Order::kDefault);

// The expected bytes are put together here. Each id depends on its layer, token and choice.
TEST_P(RouteRows, BringsTheChoicesOfAllLayersTogether) {
    for (const std::int64_t id_bytes : {1, 2}) {
        for (const std::int64_t k : {1, 3, 8}) {
            constexpr std::int64_t kLayers = 5;
            constexpr std::int64_t kTokens = 17;
            SCOPED_TRACE(testing::Message() << k << " of a token, " << id_bytes << " bytes");
            const auto id_of = [&](std::int64_t l, std::int64_t t, std::int64_t j) {
                const std::int64_t id = (l * 1000 + t * 31 + j * 7) * 13;
                return static_cast<std::int32_t>(id % (id_bytes == 1 ? 256 : 65536));
            };
            std::vector<std::int32_t> chosen;
            for (std::int64_t l = 0; l < kLayers; ++l) {
                for (std::int64_t i = 0; i < kTokens * k; ++i)
                    chosen.push_back(id_of(l, i / k, i % k));
                chosen.push_back(-1);  // layers have gaps between them
            }
            const std::vector<std::int32_t> token_rows{16, 0, 5, 5, 9};
            std::vector<std::uint8_t> expected;
            for (const std::int32_t t : token_rows) {
                for (std::int64_t i = 0; i < kLayers * k; ++i) {
                    const std::int32_t id = id_of(i / k, t, i % k);
                    expected.push_back(static_cast<std::uint8_t>(id % 256));
                    if (id_bytes == 2) expected.push_back(static_cast<std::uint8_t>(id / 256));
                }
            }
            const auto device_chosen = put(chosen);
            const auto device_token_rows = put(token_rows);
            const auto y = put(std::vector<std::uint8_t>(expected.size(), 0x5a));
            ops().route_rows(
                {.chosen = device_chosen.data(),
                 .layer_stride = kTokens * k + 1,
                 .num_layers = kLayers,
                 .per_token = k,
                 .token_rows = device_token_rows.data(),
                 .num_rows = std::ssize(token_rows),
                 .id_bytes = id_bytes,
                 .y = y.data(),
                 .stream = stream()}
            );
            EXPECT_EQ(y.fetch(), expected);
        }
    }
}

// The op adds to earlier counts. The expected counts are computed with a plain loop.
TEST_P(RouteRows, ChoicesAreCountedByLayerAndExpert) {
    constexpr std::int64_t kLayers = 3;
    constexpr std::int64_t kExperts = 70;
    constexpr std::int64_t k = 4;
    for (const std::int64_t num_tokens : {0, 1, 9, 300}) {
        SCOPED_TRACE(num_tokens);
        const std::int64_t stride = (num_tokens + 2) * k;  // tokens of padding are not counted
        std::vector<std::int32_t> chosen(static_cast<std::size_t>(kLayers * stride), 7);
        std::vector<std::int64_t> expected;
        for (std::int64_t i = 0; i < kLayers * kExperts; ++i) expected.push_back(i);
        const std::vector<std::int64_t> before = expected;
        for (std::int64_t l = 0; l < kLayers; ++l) {
            for (std::int64_t i = 0; i < num_tokens * k; ++i) {
                const std::int64_t expert = (i * i + 5 * l) % kExperts;
                chosen[static_cast<std::size_t>(l * stride + i)] =
                    static_cast<std::int32_t>(expert);
                ++expected[static_cast<std::size_t>(l * kExperts + expert)];
            }
        }
        const auto device_chosen = put(chosen);
        const auto counts = put(before);
        const auto y = put(std::vector<std::int64_t>(before.size(), -1));
        CountChoicesArgs args{
            .chosen = device_chosen.data(),
            .layer_stride = stride,
            .num_layers = kLayers,
            .per_token = k,
            .num_tokens = num_tokens,
            .num_experts = kExperts,
            .counts = counts.data(),
            .stream = stream()};
        ops().count_choices(args);
        EXPECT_EQ(counts.fetch(), expected);
        args.num_tokens = 0;
        args.y = y.data();
        ops().count_choices(args);
        EXPECT_EQ(y.fetch(), expected);
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
