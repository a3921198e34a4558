// Writes routes into answers (messages/routes.h), in the forms that trainers read, all in base64:
//
//   kSglang    "routed_experts": int32, without a header, and "routed_experts_start_len"
//   kNumpy     "routed_experts", vLLM's: an .npy file of uint8; uint16 with over 256 experts
//   kEnvelope  "routed_experts", prime-rl's: {"data", "shape", "start", "dtype"}, dtype as above
//   kSmallest  SkyRL's envelope: of uint8, int16 and int32, the first that holds the largest id
//
// All forms add "routed_experts_spans": [{"epoch", "start", "end"}], half-open over tokens.
// Sources: SGLang's state_capturer, vLLM's numpy_to_b64, prime-rl's serialize_routed_experts,
// SkyRL's pack_routed_experts.
#pragma once

#include "http_proc/format/json_body.h"
#include "http_proc/format/json_writer.h"
#include "messages/generation.h"

#include <cstdint>
#include <optional>
#include <utility>

namespace pitstop::http {

enum class RoutesForm : std::uint8_t { kSglang, kNumpy, kEnvelope, kSmallest };

// The routes that an answer shows, and their form.
struct RoutesAsked {
    std::optional<std::int64_t> start{};  // the token of the first row; absent: shows no routes
    RoutesForm form = RoutesForm::kSglang;
    bool is_streamed = false;  // each event has the new rows; otherwise the last event has all rows
};

// Reads "stream_routed_experts". `fields` gets the errors.
void read_streamed_routes(FieldReader& fields, bool is_streamed, bool& streams_routes);

// The routes of one request, in the form that its answer uses.
//
// Bounded: by the request's own rows.
class RoutesOutput {
  public:
    // `shape` is the model's; absent if the model has no experts.
    RoutesOutput(const RoutesAsked& asked, const std::optional<messages::RouteShape>& shape)
        : asked_(asked), shape_(shape) {}

    void append(std::optional<messages::Routes> routes) {
        messages::append_routes(rows_, std::move(routes));
    }
    // Returns whether this event shows routes.
    [[nodiscard]] bool has_part(bool is_last) const {
        return asked_.start && (is_last || (asked_.is_streamed && rows_));
    }
    // Writes the form's members, with the rows that no earlier event had. Each of the `num_tokens`
    // tokens of prompt and output has a row, except the last. Writes "routed_experts": null if rows
    // are missing at the end, as after an abort of the prefill. REQUIRES: has_part(is_last).
    void write(JsonWriter& json, std::int64_t num_tokens, bool is_last);

  private:
    RoutesAsked asked_;
    std::optional<messages::RouteShape> shape_;
    std::optional<messages::Routes> rows_{};
    std::int64_t num_written_ = 0;
};

}  // namespace pitstop::http
