// Names the values of a forward pass that were infinite or NaN. A request with such a token ends
// with the error not_finite: nothing of the token is drawn, scored or cached (kernels/KERNELS.md,
// "What is not finite").
#pragma once

#include "messages/fields.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace pitstop::messages {

enum class NotFiniteKind : std::uint8_t {
    kState,   // the hidden state of a token whose logits are not needed
    kLogits,  // logits, as the model computed them
    kScores,  // logits that the request's own penalties, bias and temperature made not finite
};
template <>
struct EnumNames<NotFiniteKind> {
    static constexpr std::array<std::string_view, 3> kNames{"state", "logits", "scores"};
};

// The first token of a plan's row that is not finite.
struct NotFiniteRow {
    std::int64_t row = 0;
    std::int64_t position = 0;
    NotFiniteKind kind{};

    template <class F>
    void fields(F&& f) {
        f("row", row, "its place in the plan's rows");
        f("position",
          position,
          "the first such position in the request's context (prompt and output)");
        f("kind", kind, "state, logits or scores");
    }
    friend bool operator==(const NotFiniteRow&, const NotFiniteRow&) = default;
};

// The number of requests that ended because of values that are not finite.
struct NotFiniteCount {
    NotFiniteKind kind{};
    std::int64_t requests = 0;

    template <class F>
    void fields(F&& f) {
        f("kind", kind, "state, logits or scores");
        f("requests", requests, "requests that ended because of this kind");
    }
    friend bool operator==(const NotFiniteCount&, const NotFiniteCount&) = default;
};

}  // namespace pitstop::messages
