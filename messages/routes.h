// Routes: the experts that the router of each layer chose for a token (kernels/router.h).
//
// The row of token r comes from the pass whose input is token r, and whose logits predict token r +
// 1. So n tokens have n - 1 rows: the last token was never an input.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::messages {

// The layout of a row: [layers, per_token] ids below num_experts. An id has one byte, or two if
// there are more than 256 experts. A layer without experts has zeros.
struct RouteShape {
    std::int64_t layers = 0;
    std::int64_t per_token = 0;
    std::int64_t num_experts = 0;

    [[nodiscard]] std::int64_t ids_per_row() const { return layers * per_token; }
    [[nodiscard]] std::int64_t id_bytes() const { return num_experts <= 256 ? 1 : 2; }
    [[nodiscard]] std::int64_t row_bytes() const { return ids_per_row() * id_bytes(); }

    template <class F>
    void fields(F&& f) {
        f("layers", layers, "all of the model's layers, including those without experts");
        f("per_token", per_token, "experts that each token has in a layer");
        f("num_experts",
          num_experts,
          "ids are less than this: one byte each, two bytes if it is over 256");
    }
    friend bool operator==(const RouteShape&, const RouteShape&) = default;
};

// A run of rows that were computed under one weight version.
struct RouteSpan {
    Epoch epoch{};
    std::int64_t rows = 0;

    template <class F>
    void fields(F&& f) {
        f("epoch", epoch, "the epoch of the weights that chose the rows' experts");
        f("rows", rows, "number of rows");
    }
    friend bool operator==(const RouteSpan&, const RouteSpan&) = default;
};

// The rows of tokens [start, start + n).
struct Routes {
    std::int64_t start = 0;
    RouteShape shape{};
    RawPart<std::uint8_t> experts{};
    std::vector<RouteSpan> spans{};

    [[nodiscard]] std::int64_t num_rows() const;
    // Appends the rows that follow these. REQUIRES: both have the same shape.
    void append(Routes next);
    // Appends rows that were computed under `epoch`. REQUIRES: whole rows.
    void append(std::span<const std::uint8_t> rows, Epoch epoch);
    // Keeps the first `num` rows. REQUIRES: 0 <= num <= num_rows().
    void keep(std::int64_t num);

    template <class F>
    void fields(F&& f) {
        f("start", start, "the index of the first row's token in prompt and output together");
        f("shape", shape, "the shape of a row");
        f("experts",
          experts,
          "[n, layers, per_token], the most probable first, little-endian if ids have two bytes");
        f("spans",
          spans,
          "the versions that chose the experts, run-length encoded: the spans' rows sum to n");
    }
    friend bool operator==(const Routes&, const Routes&) = default;
};

// The routes that a request brings for its first tokens: the passes of these tokens use these
// experts, in this order.
struct BroughtRoutes {
    // Enough for 32,768 tokens of 48 layers with 8 of 128 experts. A door accepts messages of 16
    // MiB, and the prompt is in the same message.
    static constexpr std::int64_t kBytesMax = std::int64_t{12} << 20;
    RouteShape shape{};
    RawArray<std::uint8_t> experts{};

    [[nodiscard]] std::int64_t num_rows() const;

    template <class F>
    void fields(F&& f) {
        f("shape", shape, "the shape of a row: the model's own");
        f("experts", experts, "[n, layers, per_token], little-endian if ids have two bytes");
    }
    friend bool operator==(const BroughtRoutes&, const BroughtRoutes&) = default;
};

// The number of tokens that each expert of each layer has computed.
struct ExpertLoad {
    // Enough for 96 layers of 512 experts. In a status, these counts have up to 512 KiB.
    static constexpr std::int64_t kCountsMax = std::int64_t{1} << 16;
    std::int64_t layers = 0;
    std::int64_t num_experts = 0;
    RawPart<std::int64_t> tokens{};

    template <class F>
    void fields(F&& f) {
        f("layers", layers, "all of the model's layers, including those without experts");
        f("num_experts", num_experts, "experts per layer");
        f("tokens",
          tokens,
          "[layers, num_experts], tokens routed to each expert since the start; layers without "
          "experts have zeros");
    }
    friend bool operator==(const ExpertLoad&, const ExpertLoad&) = default;
};

// Appends the rows that follow those of `whole`, which have the same shape. Either may be absent.
void append_routes(std::optional<Routes>& whole, std::optional<Routes> next);

// Adds the counts of `next` to those of `sum`. Either may be absent. Ignores `next` if its shape
// differs.
void add_load(std::optional<ExpertLoad>& sum, std::optional<ExpertLoad> next);

// Finds the first entry of `rows` that no router would choose: not an expert's id, a repeated id of
// one token in one layer, or a nonzero entry of a dense layer. Returns the problem with token,
// layer and entry, or nothing. REQUIRES: whole rows; `dense_layers` ascend.
std::optional<std::string> problem_of_rows(
    const RouteShape& shape,
    std::span<const std::int64_t> dense_layers,
    std::span<const std::uint8_t> rows
);

// Return what is wrong with the value, or nothing.
std::optional<std::string> invalid(const RouteShape& shape);
std::optional<std::string> invalid(const BroughtRoutes& routes);
// Returns what is wrong with the list of the layers that have zeros in `shape`, or nothing.
std::optional<std::string> invalid_dense_layers(
    const RouteShape& shape, std::span<const std::int64_t> dense_layers
);

}  // namespace pitstop::messages
