// Tests the gated delta net and the gate of attention's heads against their references; that a
// token's bits do not depend on the cut (P6); and that numbers that are not finite stay so.
#include "tests/kernels/backend.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
    std::int64_t nk = 1;
    std::int64_t nv = 1;
    std::int64_t dk = 1;
    std::int64_t dv = 1;
    std::int64_t W = 4;
    bool is_grouped = false;  // columns q, k, v, z of each key head follow each other

    [[nodiscard]] std::int64_t channels() const { return 2 * nk * dk + nv * dv; }
    [[nodiscard]] std::int64_t columns() const { return channels() + nv * dv + 2 * nv; }
    [[nodiscard]] std::int64_t state_floats() const { return nv * dk * dv; }
};

// A layer's weights, and the products' columns of all tokens.
template <class X>
struct Layer {
    Layer(const Shape& of, std::int64_t T)
        : shape(of),
          x(random_matrix<X>(T, of.columns(), 1)),
          conv(random_matrix<bf16>(1, of.channels() * of.W, 2, 0.5)),
          norm_w(random_matrix<bf16>(1, of.dv, 3)),
          dt_bias(random_matrix<bf16>(1, of.nv, 4)),
          a_log(random_matrix<float>(1, of.nv, 5)) {}

    // The arguments for tokens [begin, begin + y.rows) of `device_x`, without weights, rows and
    // states.
    [[nodiscard]] GatedDeltaArgs args(ConstActView device_x, std::int64_t begin, ActView y) const {
        const std::int64_t r = shape.nv / shape.nk;
        const std::int64_t group = 2 * shape.dk + 2 * r * shape.dv;
        const std::int64_t keys = shape.nk * shape.dk;
        const std::int64_t values = shape.nv * shape.dv;
        const auto columns =
            [&](std::int64_t flat, std::int64_t grouped, std::int64_t num, std::int64_t in_group) {
                const bool is_small =
                    num == 1 && in_group == r;  // b and a have groups of their own
                const std::int64_t at = shape.is_grouped ? grouped : flat;
                const std::int64_t stride = !shape.is_grouped ? num * in_group
                                            : is_small        ? 2 * r
                                                              : group;
                return HeadColumns{
                    .first = cols(rows(device_x, begin, y.rows), at, num),
                    .group_stride = stride,
                    .group_len = in_group};
            };
        const std::int64_t small = 2 * keys + 2 * values;
        return {
            .q = columns(0, 0, shape.dk, 1),
            .k = columns(keys, shape.dk, shape.dk, 1),
            .v = columns(2 * keys, 2 * shape.dk, shape.dv, r),
            .z = columns(2 * keys + values, 2 * shape.dk + r * shape.dv, shape.dv, r),
            .b = columns(small, small, 1, r),
            .a = columns(small + shape.nv, small + r, 1, r),
            .y = y,
            .num_key_heads = shape.nk,
            .num_value_heads = shape.nv,
            .norm_eps = 1e-6f};
    }

    Shape shape;
    Matrix<X> x;  // [T, columns]
    Matrix<bf16> conv;
    Matrix<bf16> norm_w;
    Matrix<bf16> dt_bias;
    Matrix<float> a_log;
};

// Places for states, which begin with garbage.
template <class X>
struct Places {
    Places(const Shape& shape, std::int64_t num)
        : state_bytes(shape.state_floats() * 4),
          used_bytes(state_bytes + (shape.W - 1) * shape.channels() * std::int64_t{sizeof(X)}),
          place_bytes((used_bytes + 63) / 64 * 64),
          bytes(static_cast<std::size_t>(num * place_bytes), std::byte{0x7f}) {}

    void give(std::byte* there, GatedDeltaArgs& args) const {
        args.states = reinterpret_cast<float*>(there);
        args.inputs = there + state_bytes;
        args.place_bytes = place_bytes;
    }

    [[nodiscard]] std::span<const std::byte> of(std::int64_t place) const {
        const auto begin = static_cast<std::size_t>(place * place_bytes);
        return std::span(bytes).subspan(begin, static_cast<std::size_t>(used_bytes));
    }

    std::int64_t state_bytes;
    std::int64_t used_bytes;
    std::int64_t place_bytes;
    std::vector<std::byte> bytes;
};

// One request's tokens in a step.
struct Part {
    std::int32_t num = 0;
    std::int32_t position = 0;
    std::int32_t place = 0;
    std::int32_t from = 0;         // the place of the state to continue, if position is not 0
    std::int32_t saved_len = 0;    // tokens after which the state is saved, too; 0: none
    std::int32_t saved = 0;        // the place of the saved state
    std::int32_t num_guesses = 0;  // the part's last tokens, which leave no state
};

class GatedDelta : public OnBackend {
  protected:
    // Runs a step of parts, whose first token is token `begin` of the layer's.
    template <class X, class Y>
    void run(
        void (*op)(const GatedDeltaArgs&),
        const Layer<X>& layer,
        std::int64_t begin,
        std::span<const Part> parts,
        Places<X>& places,
        Matrix<Y>& y
    ) {
        std::vector<std::int32_t> q_starts{0};
        std::vector<std::int32_t> positions;
        std::vector<std::int32_t> to, from, saved, saved_ends, stored_ends;
        bool has_guesses = false;
        for (const Part& part : parts) {
            q_starts.push_back(q_starts.back() + part.num);
            for (std::int32_t i = 0; i < part.num; ++i) positions.push_back(part.position + i);
            to.push_back(part.place);
            from.push_back(part.from);
            saved.push_back(part.saved);
            saved_ends.push_back(q_starts[to.size() - 1] + part.saved_len);
            stored_ends.push_back(q_starts.back() - part.num_guesses);
            has_guesses = has_guesses || part.num_guesses > 0;
        }
        const Place where = op == gated_delta_ref ? Place{} : place();
        const PlacedMatrix<X> device_x(layer.x, where);
        const PlacedMatrix<bf16> conv(layer.conv, where), norm_w(layer.norm_w, where);
        const PlacedMatrix<bf16> dt_bias(layer.dt_bias, where);
        const PlacedMatrix<float> a_log(layer.a_log, where);
        const PlacedMatrix<Y> device_y(y, where);
        const PlacedArray<std::byte> states(places.bytes, where);
        const auto put = [&](const std::vector<std::int32_t>& host) {
            return PlacedArray<std::int32_t>(host, where);
        };
        const auto device_starts = put(q_starts), device_positions = put(positions);
        const auto device_to = put(to), device_from = put(from);
        const auto device_saved = put(saved), device_ends = put(saved_ends);
        const auto device_stored = put(stored_ends);
        GatedDeltaArgs args = layer.args(
            device_x.view(), begin, rows(ActView(device_y.view()), begin, q_starts.back())
        );
        const Shape& shape = layer.shape;
        args.conv = {conv.view().data, shape.channels(), shape.W, shape.W};
        args.a_log = a_log.view().data;
        args.dt_bias = dt_bias.view().data;
        args.norm_w = norm_w.view().data;
        places.give(states.data(), args);
        args.num_rows = std::ssize(parts);
        args.q_starts = device_starts.data();
        args.places = device_to.data();
        args.from_places = device_from.data();
        args.saved_places = device_saved.data();
        args.saved_ends = device_ends.data();
        if (has_guesses) args.stored_ends = device_stored.data();
        args.positions = device_positions.data();
        args.stream = where.stream;
        op(args);
        device_y.fetch(y);
        places.bytes = states.fetch();
    }

    template <class X, class Y>
    void expect_reference(const Shape& shape) {
        SCOPED_TRACE(
            testing::Message() << "nk " << shape.nk << " nv " << shape.nv << " dk " << shape.dk
                               << " dv " << shape.dv << " W " << shape.W << " grouped "
                               << shape.is_grouped
        );
        const std::int64_t T = 70;
        const Layer<X> layer(shape, T);
        Matrix<Y> expected(T, shape.nv * shape.dv, 0x11);
        Matrix<Y> actual(T, shape.nv * shape.dv, 0x22);
        Places<X> places_expected(shape, 3);
        Places<X> places_actual(shape, 3);
        const std::vector<Part> first{{40, 0, 1}, {1, 0, 2}};
        const std::vector<Part> second{{2, 1, 2, 2}, {27, 40, 1, 1}};
        run(gated_delta_ref, layer, 0, first, places_expected, expected);
        run(gated_delta_ref, layer, 41, second, places_expected, expected);
        run(ops().gated_delta, layer, 0, first, places_actual, actual);
        run(ops().gated_delta, layer, 41, second, places_actual, actual);
        // The state's errors decay with it. The last norm divides by the root of mean squares of q
        // S, which may be small compared with its terms: the error is relative to the row's scale.
        // On a GPU q S is rounded to y's dtype before that norm: each element, and the scale.
        const double roundings = is_gpu() ? 4.04 : 2.02;
        const auto bound = [&](std::int64_t r, std::int64_t c) {
            double scale = 0.0;
            const std::int64_t head = c / shape.dv * shape.dv;
            for (std::int64_t i = 0; i < shape.dv; ++i)
                scale = std::max(scale, std::abs(expected.value(r, head + i)));
            return (static_cast<double>(shape.dk) + 500.0) * kEps32 * (scale + 0.1) +
                   roundings * rounding_of(kDTypeOf<Y>) * std::abs(expected.value(r, c));
        };
        expect_within(actual, expected, bound);
    }
};
PITSTOP_ON_BACKENDS(GatedDelta, Order::kDefault);

TEST_P(GatedDelta, MeetsTheReferenceOnAwkwardShapes) {
    for (const Shape& shape :
         {Shape{1, 1, 16, 16, 4, false},
          {2, 4, 32, 48, 4, false},
          {2, 6, 24, 40, 4, true},
          {3, 3, 5, 7, 2, false},
          {1, 2, 33, 17, 3, true},
          {2, 2, 128, 64, 8, true},
          {1, 1, 1, 1, 2, false}}) {
        expect_reference<float, float>(shape);
        expect_reference<float, bf16>(shape);
        expect_reference<bf16, bf16>(shape);
    }
}

// P6: for any cut of a request's tokens into steps, and any other rows in the same steps.
TEST_P(GatedDelta, P6_ATokenDependsOnNeitherCutNorBatch) {
    for (const Shape& shape : {Shape{2, 4, 40, 72, 4, true}, {1, 3, 16, 16, 2, false}}) {
        constexpr std::int32_t T = 90;
        const Layer<float> layer(shape, T);
        Matrix<float> whole(T, shape.nv * shape.dv, 0x11);
        Places<float> places_whole(shape, 1);
        run(ops().gated_delta, layer, 0, std::array{Part{T, 0, 0}}, places_whole, whole);
        for (const std::int32_t size : {1, 2, 3, 15, 16, 17, 64}) {
            Matrix<float> cut(T, shape.nv * shape.dv, 0x22);
            Places<float> places(shape, 2);
            for (std::int32_t begin = 0; begin < T; begin += size) {
                const std::int32_t num = std::min(size, T - begin);
                run(ops().gated_delta, layer, begin, std::array{Part{num, begin, 1, 1}}, places, cut
                );
            }
            EXPECT_EQ(cut.bits(), whole.bits()) << "chunks of " << size;
            const auto kept = std::span(places.bytes).last(places_whole.bytes.size());
            const auto state_bytes = static_cast<std::size_t>(places.state_bytes);
            EXPECT_TRUE(std::ranges::equal(
                kept.first(state_bytes), std::span(places_whole.bytes).first(state_bytes)
            )) << "the state after chunks of "
               << size;
        }
        // Rows of three requests, the last of which does not change.
        Layer<float> more(shape, T + 20);
        for (std::int64_t t = 0; t < T; ++t) {
            for (std::int64_t i = 0; i < shape.columns(); ++i) more.x(t + 20, i) = layer.x(t, i);
        }
        Matrix<float> batch(T + 20, shape.nv * shape.dv, 0x33);
        Places<float> places(shape, 5);
        run(ops().gated_delta,
            more,
            0,
            std::array{Part{13, 0, 4}, Part{7, 0, 0}, Part{T, 0, 2}},
            places,
            batch);
        for (std::int64_t t = 0; t < T; ++t) EXPECT_EQ(batch.bits(t + 20), whole.bits(t));
    }
}

// A row may continue from a state that another row saved in the middle of its tokens, and leaves
// that state unchanged.
TEST_P(GatedDelta, ARowContinuesFromASavedStateWithTheSameBits) {
    const Shape shape{2, 4, 24, 40, 4, false};
    constexpr std::int32_t T = 60;
    const Layer<float> layer(shape, T);
    Matrix<float> whole(T, shape.nv * shape.dv, 0x11);
    Places<float> places(shape, 4);
    run(ops().gated_delta, layer, 0, std::array{Part{T, 0, 0}}, places, whole);
    for (const std::int32_t len : {1, 2, 3, 16, 37, T}) {
        SCOPED_TRACE(testing::Message() << "saved after " << len);
        Matrix<float> y(T, shape.nv * shape.dv, 0x22);
        run(ops().gated_delta, layer, 0, std::array{Part{T, 0, 1, 0, len, 3}}, places, y);
        EXPECT_EQ(y.bits(), whole.bits());
        for (const std::int32_t place : {1, 2}) {
            // The restoring row has fewer tokens than the convolution's window, or more.
            for (const std::int32_t first : {1, 2, T - len}) {
                if (len == T) break;
                Matrix<float> rest(T, shape.nv * shape.dv, 0x33);
                const std::int32_t next = len + first;
                const std::array restoring{Part{first, len, place, 3}};
                const std::array following{Part{T - next, next, place, place}};
                run(ops().gated_delta, layer, len, restoring, places, rest);
                if (next < T) run(ops().gated_delta, layer, next, following, places, rest);
                for (std::int64_t t = len; t < T; ++t) EXPECT_EQ(rest.bits(t), whole.bits(t));
            }
        }
        // The saved state equals the state that a row of only `len` tokens leaves at its end.
        Matrix<float> head(T, shape.nv * shape.dv, 0x44);
        run(ops().gated_delta, layer, 0, std::array{Part{len, 0, 1}}, places, head);
        EXPECT_TRUE(std::ranges::equal(places.of(1), places.of(3)));
    }
}

// The outputs of guesses equal those of the same tokens in a row without guesses; guesses change no
// state.
TEST_P(GatedDelta, P11_GuessesLeaveNoState) {
    if (is_gpu()) GTEST_SKIP() << "GPUs verify no drafts over states";
    for (const Shape& shape : {Shape{2, 4, 24, 40, 4, true}, {1, 1, 33, 17, 8, false}}) {
        constexpr std::int32_t kHead = 20;  // tokens of another row, before the tested ones
        constexpr std::int32_t T = 60;
        const Layer<float> layer(shape, kHead + T);
        Matrix<float> whole(kHead + T, shape.nv * shape.dv, 0x11);
        Places<float> places(shape, 6);
        const Part other{kHead, 0, 0};
        run(ops().gated_delta, layer, 0, std::array{other, Part{T, 0, 1}}, places, whole);
        for (const std::int32_t num_guesses : {1, 2, 15, 16, 17, 40}) {
            SCOPED_TRACE(testing::Message() << num_guesses << " guesses");
            const std::int32_t known = T - num_guesses;
            Matrix<float> y(kHead + T, shape.nv * shape.dv, 0x22);
            // In one row, or in one that continues and saves before its guesses.
            const Part one{T, 0, 2, 2, 0, 0, num_guesses};
            run(ops().gated_delta, layer, 0, std::array{other, one}, places, y);
            EXPECT_EQ(y.bits(), whole.bits());
            const Part first{known - 1, 0, 3};
            const Part second{1 + num_guesses, known - 1, 3, 3, 1, 4, num_guesses};
            Matrix<float> cut(kHead + T, shape.nv * shape.dv, 0x33);
            run(ops().gated_delta, layer, kHead, std::array{first}, places, cut);
            run(ops().gated_delta, layer, kHead + known - 1, std::array{second}, places, cut);
            for (std::int64_t t = kHead; t < kHead + T; ++t) EXPECT_EQ(cut.bits(t), whole.bits(t));
            run(ops().gated_delta, layer, kHead, std::array{Part{known, 0, 5}}, places, cut);
            for (const std::int64_t place : {2, 3, 4})
                EXPECT_TRUE(std::ranges::equal(places.of(place), places.of(5))) << place;
        }
    }
}

// An infinity or a NaN in any column of a token shows in that token's output, and in no other
// row.
TEST_P(GatedDelta, AValueThatIsNotFiniteShowsInItsTokenAndInNoOtherRow) {
    const Shape shape{1, 1, 16, 24, 4, false};
    const std::vector<Part> parts{{5, 0, 0}, {4, 0, 1}};
    const Layer<float> clean(shape, 9);
    Matrix<float> expected(9, shape.dv, 0x11);
    Places<float> places_of_clean(shape, 2);
    run(ops().gated_delta, clean, 0, parts, places_of_clean, expected);
    for (std::int64_t column = 0; column < shape.columns(); ++column) {
        for (const float value : {kInf, -kInf, kNan}) {
            Layer<float> spoiled(shape, 9);
            spoiled.x(2, column) = value;
            Matrix<float> y(9, shape.dv, 0x22);
            Places<float> places(shape, 2);
            run(ops().gated_delta, spoiled, 0, parts, places, y);
            bool is_finite = true;
            for (std::int64_t i = 0; i < shape.dv; ++i)
                is_finite = is_finite && std::isfinite(y.value(2, i));
            EXPECT_FALSE(is_finite) << "column " << column << " is " << value;
            for (const std::int64_t t : {0, 1, 5, 6, 7, 8})
                EXPECT_EQ(y.bits(t), expected.bits(t)) << "token " << t << ", column " << column;
        }
    }
}

class GateHeads : public OnBackend {
  protected:
    template <class Y, class G>
    void expect_reference(std::int64_t Q, std::int64_t D) {
        SCOPED_TRACE(testing::Message() << "Q " << Q << " D " << D);
        const Matrix<G> gates = random_matrix<G>(6, 2 * Q * D, 1, 3.0);
        Matrix<Y> expected = random_matrix<Y>(6, Q * D, 2);
        Matrix<Y> actual = expected;
        const auto gate_with = [&](void (*op)(const GateHeadsArgs&), Matrix<Y>& y, Place where) {
            const PlacedMatrix<G> device_gates(gates, where);
            const PlacedMatrix<Y> device_y(y, where);
            op({.y = device_y.view(),
                .head_dim = D,
                .gate = cols(ConstActView(device_gates.view()), D, (2 * Q - 1) * D),
                .gate_head_stride = 2 * D,
                .stream = where.stream});
            device_y.fetch(y);
        };
        gate_with(gate_heads_ref, expected, Place{});
        gate_with(ops().gate_heads, actual, place());
        expect_within(actual, expected, [&](std::int64_t r, std::int64_t c) {
            const double relative = 10.0 * kEps32 + 0x1p-22 + 2.02 * rounding_of(kDTypeOf<Y>);
            return relative * std::abs(expected.value(r, c)) + 1e-38;
        });
    }
};
PITSTOP_ON_BACKENDS(GateHeads, Order::kDefault);

TEST_P(GateHeads, MeetsTheReferenceOnAwkwardShapes) {
    for (const auto& [Q, D] :
         {std::pair<std::int64_t, std::int64_t>{1, 16}, {3, 20}, {2, 256}, {5, 2}}) {
        expect_reference<float, float>(Q, D);
        expect_reference<bf16, float>(Q, D);
        expect_reference<bf16, bf16>(Q, D);
    }
}

TEST_P(GateHeads, AGateThatIsNotFiniteGivesNan) {
    for (const float value : {kInf, -kInf, kNan}) {
        Matrix<float> gates = random_matrix<float>(2, 24, 1);
        gates(1, 20) = value;
        Matrix<float> y = random_matrix<float>(2, 24, 2);
        const auto device_gates = put(gates);
        const auto device_y = put(y);
        ops().gate_heads(
            {.y = device_y.view(),
             .head_dim = 24,
             .gate = device_gates.view(),
             .gate_head_stride = 24,
             .stream = stream()}
        );
        device_y.fetch(y);
        for (std::int64_t i = 0; i < 24; ++i) {
            EXPECT_TRUE(std::isfinite(y(0, i)));
            EXPECT_EQ(std::isnan(y(1, i)), i == 20);
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
