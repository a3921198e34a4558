#include "http_proc/format/routed_experts.h"

#include "http_proc/format/base64.h"
#include "http_proc/format/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

struct Dtype {
    std::string_view name{};  // numpy's name
    std::string_view code{};  // in an .npy file
    std::size_t bytes = 1;
};
constexpr Dtype kUint8{.name = "uint8", .code = "|u1", .bytes = 1};
constexpr Dtype kUint16{.name = "uint16", .code = "<u2", .bytes = 2};
constexpr Dtype kInt16{.name = "int16", .code = "<i2", .bytes = 2};
constexpr Dtype kInt32{.name = "int32", .code = "<i4", .bytes = 4};

std::size_t width_of(const messages::Routes& routes) {
    return static_cast<std::size_t>(routes.shape.id_bytes());
}

std::int32_t largest_id(const messages::Routes& routes) {
    const std::vector<std::uint8_t>& ids = routes.experts.values;
    std::int32_t largest = 0;
    for (std::size_t i = 0; i < ids.size(); i += width_of(routes)) {
        const std::int32_t high = width_of(routes) == 2 ? 256 * ids[i + 1] : 0;
        largest = std::max(largest, high + ids[i]);
    }
    return largest;
}

Dtype dtype_of(const messages::Routes& routes, RoutesForm form) {
    switch (form) {
        case RoutesForm::kSglang:
            return kInt32;
        case RoutesForm::kNumpy:
        case RoutesForm::kEnvelope:
            return width_of(routes) == 1 ? kUint8 : kUint16;
        case RoutesForm::kSmallest:
            break;
    }
    const std::int32_t largest = largest_id(routes);
    if (largest <= std::numeric_limits<std::uint8_t>::max()) return kUint8;
    return largest <= std::numeric_limits<std::int16_t>::max() ? kInt16 : kInt32;
}

// Appends the ids in base64, little-endian, `bytes_each` bytes each. REQUIRES: `to` has a multiple
// of 3 bytes in base64 so far, so that no group of base64 is open.
void append_ids(std::string& to, const messages::Routes& routes, std::size_t bytes_each) {
    constexpr std::size_t kIdsMax = std::size_t{3} * 256;  // a multiple of 3, to end with a group
    std::array<std::uint8_t, kIdsMax * 4> bytes{};
    const std::vector<std::uint8_t>& ids = routes.experts.values;
    const std::size_t width = width_of(routes);
    const std::size_t num_copied = std::min(width, bytes_each);
    to.reserve(to.size() + ids.size() / width * bytes_each * 4 / 3 + 4);
    for (std::size_t begin = 0; begin < ids.size(); begin += kIdsMax * width) {
        const std::size_t num = std::min(kIdsMax, (ids.size() - begin) / width);
        bytes.fill(0);
        for (std::size_t i = 0; i < num; ++i) {
            for (std::size_t byte = 0; byte < num_copied; ++byte)
                bytes[i * bytes_each + byte] = ids[begin + i * width + byte];
        }
        append_base64(to, std::span(bytes).first(num * bytes_each));
    }
}

void write_ids(JsonWriter& json, const messages::Routes& routes, RoutesForm form) {
    const Dtype dtype = dtype_of(routes, form);
    std::string text = "\"";
    if (form == RoutesForm::kNumpy) {
        const std::array shape{routes.num_rows(), routes.shape.layers, routes.shape.per_token};
        const std::string header = npy_header(dtype.code, shape);
        append_base64(text, {reinterpret_cast<const std::uint8_t*>(header.data()), header.size()});
    }
    append_ids(text, routes, dtype.bytes);
    text += '"';
    if (form == RoutesForm::kSglang || form == RoutesForm::kNumpy) {
        json.raw(text);
        return;
    }
    json.begin_object().key("data").raw(text);  // first: clients look for the bytes {"data":"
    json.key("shape").begin_array().integer(routes.num_rows()).integer(routes.shape.layers);
    json.integer(routes.shape.per_token).end_array();
    json.key("start").integer(routes.start).key("dtype").string(dtype.name).end_object();
}

void write_spans(JsonWriter& json, const messages::Routes& routes) {
    std::int64_t begin = routes.start;
    json.begin_array();
    for (const messages::RouteSpan& span : routes.spans) {
        json.begin_object().key("epoch").integer(raw(span.epoch));
        json.key("start").integer(begin).key("end").integer(begin + span.rows).end_object();
        begin += span.rows;
    }
    json.end_array();
}

}  // namespace

void read_streamed_routes(FieldReader& fields, bool is_streamed, bool& streams_routes) {
    fields.read("stream_routed_experts", streams_routes);
    if (streams_routes && !is_streamed)
        fields.refuse("stream_routed_experts", "stream is not true");
}

void RoutesOutput::write(JsonWriter& json, std::int64_t num_tokens, bool is_last) {
    const std::int64_t start = *asked_.start + num_written_;
    messages::Routes part =
        rows_ ? *std::move(rows_)
              : messages::Routes{.start = start, .shape = shape_.value_or(messages::RouteShape{})};
    rows_.reset();
    part.start = start;
    num_written_ += part.num_rows();
    json.key("routed_experts");
    const std::int64_t num_wanted = std::max<std::int64_t>(num_tokens - 1 - *asked_.start, 0);
    if (!is_last || num_written_ == num_wanted) {
        write_ids(json, part, asked_.form);
    } else {
        json.null();
    }
    if (asked_.form == RoutesForm::kSglang) json.key("routed_experts_start_len").integer(start);
    json.key("routed_experts_spans");
    write_spans(json, part);
}

}  // namespace pitstop::http
