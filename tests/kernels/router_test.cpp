// Tests the router, and that it follows given experts.
#include "kernels/router.h"

#include "tests/kernels/backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Router : public OnBackend {
  protected:
    struct Routes {
        Matrix<std::int32_t> experts;
        Matrix<float> weights;
    };

    static Routes reference(
        const Matrix<float>& logits, std::int64_t k, RouterNorm norm, bool rounds_weights
    ) {
        Routes routes{{logits.num_rows(), k, 0x11}, {logits.num_rows(), k, 0x11}};
        route_ref(
            {.logits = logits.view(),
             .experts = routes.experts.view(),
             .weights = routes.weights.view(),
             .norm = norm,
             .rounds_weights = rounds_weights}
        );
        return routes;
    }

    Routes route(
        const Matrix<float>& logits, std::int64_t k, RouterNorm norm, bool rounds_weights = false
    ) {
        Routes routes{{logits.num_rows(), k, 0x22}, {logits.num_rows(), k, 0x33}};
        const auto device_logits = put(logits);
        const auto experts = put(routes.experts);
        const auto weights = put(routes.weights);
        ops().route(
            {.logits = device_logits.view(),
             .experts = experts.view(),
             .weights = weights.view(),
             .norm = norm,
             .rounds_weights = rounds_weights,
             .stream = stream()}
        );
        experts.fetch(routes.experts);
        weights.fetch(routes.weights);
        return routes;
    }
};
PITSTOP_ON_BACKENDS(Router, Order::kDefault);

TEST_P(Router, MeetsTheReference) {
    for (const auto& [E, k] :
         {std::pair{1, 1}, {4, 4}, {8, 2}, {60, 4}, {128, 8}, {257, 32}, {1024, 10}}) {
        for (const RouterNorm norm : {RouterNorm::kAll, RouterNorm::kChosen}) {
            SCOPED_TRACE(testing::Message() << E << " experts, " << k << " chosen");
            const Matrix<float> logits = random_matrix<float>(is_small() ? 7 : 70, E, 3, 2.0);
            const Routes expected = reference(logits, k, norm, false);
            const Routes actual = route(logits, k, norm);
            EXPECT_EQ(actual.experts.bits(), expected.experts.bits());
            // Sums of E numbers with errors of 3 ulp each, the division, and exp's 3 ulp.
            const double relative = (static_cast<double>(E) + 10.0) * 2.0 * kEps32;
            expect_within(actual.weights, expected.weights, [&](std::int64_t t, std::int64_t j) {
                return relative * expected.weights.value(t, j) + 1e-38;
            });
        }
    }
}

TEST_P(Router, RoundsWeightsWhereAsked) {
    const Matrix<float> logits = random_matrix<float>(9, 16, 4);
    const Routes plain = route(logits, 4, RouterNorm::kChosen);
    const Routes rounded = route(logits, 4, RouterNorm::kChosen, /*rounds_weights=*/true);
    for (std::int64_t t = 0; t < 9; ++t) {
        for (std::int64_t j = 0; j < 4; ++j)
            EXPECT_EQ(rounded.weights(t, j), to_float(to_bf16(plain.weights(t, j))));
    }
}

// Of experts with equal logits the lower one comes first, wherever both are.
TEST_P(Router, BreaksTiesByTheLowerExpert) {
    Matrix<float> logits(3, 100, 0x7f);
    for (std::int64_t e = 0; e < 100; ++e) {
        logits(0, e) = 0.5f;
        logits(1, e) = e % 10 == 7 ? 2.f : 1.f;
        logits(2, e) = e == 99 ? 1.f : e % 2 == 0 ? 0.f : -0.f;
    }
    const Routes routes = route(logits, 12, RouterNorm::kAll);
    for (std::int32_t j = 0; j < 12; ++j) {
        EXPECT_EQ(routes.experts(0, j), j);
        EXPECT_EQ(routes.experts(1, j), j < 10 ? j * 10 + 7 : j - 10);
        EXPECT_EQ(routes.experts(2, j), j == 0 ? 99 : j - 1) << "zeros are equal, whatever sign";
    }
}

// Given rows, for some tokens: the others keep route()'s results.
struct Given {
    std::vector<std::uint8_t> ids{};  // behind 3 bytes of another layer
    std::vector<std::int32_t> tokens{};
    std::int64_t id_bytes = 1;

    void add(std::int32_t token, std::span<const std::int32_t> experts) {
        tokens.push_back(token);
        ids.insert(ids.end(), {0xaa, 0xbb, 0xcc});
        for (const std::int32_t expert : experts) {
            ids.push_back(static_cast<std::uint8_t>(expert & 0xff));
            if (id_bytes == 2) ids.push_back(static_cast<std::uint8_t>(expert >> 8));
        }
    }
};

class FollowedRouter : public Router {
  protected:
    Routes follow(
        const Matrix<float>& logits,
        std::int64_t k,
        RouterNorm norm,
        const Given& given,
        bool is_ref
    ) {
        Routes routes = route(logits, k, norm);
        const auto device_logits = put(logits);
        const auto experts = put(routes.experts);
        const auto weights = put(routes.weights);
        const auto ids = put(given.ids);
        const auto tokens = put(given.tokens);
        FollowRoutesArgs args{
            .route =
                {.logits = device_logits.view(),
                 .experts = experts.view(),
                 .weights = weights.view(),
                 .norm = norm,
                 .stream = stream()},
            .given = ids.data() + 3,
            .row_bytes = 3 + k * given.id_bytes,
            .id_bytes = given.id_bytes,
            .token_rows = tokens.data(),
            .num_rows = std::ssize(given.tokens)};
        if (is_ref) {
            args.route.logits = logits.view();
            args.route.experts = routes.experts.view();
            args.route.weights = routes.weights.view();
            args.given = given.ids.data() + 3;
            args.token_rows = given.tokens.data();
            follow_routes_ref(args);
            return routes;
        }
        ops().follow_routes(args);
        experts.fetch(routes.experts);
        weights.fetch(routes.weights);
        return routes;
    }
};
PITSTOP_ON_BACKENDS(FollowedRouter, Order::kDefault);

TEST_P(FollowedRouter, P6_ExpertsThatTheRouterChoseHaveItsWeightsBitForBit) {
    for (const auto& [E, k] : {std::pair{1, 1}, {8, 2}, {128, 8}, {300, 32}}) {
        for (const RouterNorm norm : {RouterNorm::kAll, RouterNorm::kChosen}) {
            SCOPED_TRACE(testing::Message() << E << " experts, " << k << " chosen");
            const Matrix<float> logits = random_matrix<float>(11, E, 3, 2.0);
            const Routes own = route(logits, k, norm);
            Given given{.id_bytes = E > 256 ? 2 : 1};
            for (std::int32_t t = 10; t >= 0; t -= 2)
                given.add(
                    t,
                    {own.experts.view().data + t * own.experts.view().stride,
                     static_cast<std::size_t>(k)}
                );
            const Routes followed = follow(logits, k, norm, given, /*is_ref=*/false);
            EXPECT_EQ(followed.experts.bits(), own.experts.bits());
            EXPECT_EQ(followed.weights.bits(), own.weights.bits());
        }
    }
}

TEST_P(FollowedRouter, OtherExpertsAreFollowedInTheirOrder) {
    for (const auto& [E, k] : {std::pair{5, 5}, {8, 2}, {128, 8}, {300, 32}}) {
        for (const RouterNorm norm : {RouterNorm::kAll, RouterNorm::kChosen}) {
            SCOPED_TRACE(testing::Message() << E << " experts, " << k << " chosen");
            const Matrix<float> logits = random_matrix<float>(11, E, 3, 2.0);
            Given given{.id_bytes = E > 256 ? 2 : 1};
            for (const std::int32_t t : {7, 0, 10}) {
                std::vector<std::int32_t> experts;
                for (std::int32_t j = 0; j < k; ++j) experts.push_back((t + E - j) % E);
                given.add(t, experts);
            }
            const Routes expected = follow(logits, k, norm, given, /*is_ref=*/true);
            const Routes actual = follow(logits, k, norm, given, /*is_ref=*/false);
            EXPECT_EQ(actual.experts.bits(), expected.experts.bits());
            EXPECT_EQ(actual.experts(7, 0), 7 % E);
            const double relative = (static_cast<double>(E) + 10.0) * 2.0 * kEps32;
            expect_within(actual.weights, expected.weights, [&](std::int64_t t, std::int64_t j) {
                return relative * expected.weights.value(t, j) + 1e-38;
            });
        }
    }
}

// The same holds if the logit that is not finite belongs to an expert that was not given.
TEST_P(FollowedRouter, OfLogitsThatAreNotFiniteNoWeightIsHealthy) {
    for (const RouterNorm norm : {RouterNorm::kAll, RouterNorm::kChosen}) {
        Matrix<float> logits = random_matrix<float>(4, 40, 5);
        logits(0, 17) = kNan;
        logits(1, 3) = kInf;
        logits(2, 5) = kNan;
        Given given;
        for (std::int32_t t = 0; t < 4; ++t) given.add(t, std::vector<std::int32_t>{5, 6});
        const Routes routes = follow(logits, 2, norm, given, /*is_ref=*/false);
        for (std::int64_t t = 0; t < 4; ++t) {
            for (std::int64_t j = 0; j < 2; ++j)
                EXPECT_EQ(std::isfinite(routes.weights(t, j)), t == 3) << "row " << t;
        }
    }
}

// Logits that are not finite give weights that are not finite, and distinct valid experts.
TEST_P(Router, OfLogitsThatAreNotFiniteNoWeightIsHealthy) {
    for (const RouterNorm norm : {RouterNorm::kAll, RouterNorm::kChosen}) {
        Matrix<float> logits = random_matrix<float>(6, 40, 5);
        logits(0, 17) = kNan;
        logits(1, 3) = kInf;
        for (std::int64_t e = 0; e < 40; ++e) {
            logits(2, e) = -kInf;
            logits(3, e) = kNan;
        }
        logits(4, 39) = -kInf;
        logits(5, 0) = logits(5, 39) = kInf;
        const Routes routes = route(logits, 5, norm);
        for (std::int64_t t = 0; t < 6; ++t) {
            std::set<std::int32_t> experts;
            for (std::int64_t j = 0; j < 5; ++j) {
                experts.insert(routes.experts(t, j));
                EXPECT_EQ(std::isfinite(routes.weights(t, j)), t == 4) << "row " << t;
            }
            EXPECT_EQ(experts.size(), 5u) << "row " << t;
            EXPECT_GE(*experts.begin(), 0);
            EXPECT_LT(*experts.rbegin(), 40);
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
