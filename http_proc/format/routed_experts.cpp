#include "http_proc/format/routed_experts.h"

#include "http_proc/format/base64.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace pitstop::http {
namespace {

// Appends the ids as little-endian int32, in base64.
void append_int32(std::string& to, const messages::Routes& routes) {
    // a multiple of 3, so that base64's groups end with them
    constexpr std::size_t kIdsMax = 3 * 256;
    std::array<std::uint8_t, kIdsMax * 4> bytes{};
    const std::vector<std::uint8_t>& ids = routes.experts.values;
    const auto width = static_cast<std::size_t>(routes.shape.id_bytes());
    to.reserve(to.size() + ids.size() / width * 16 / 3 + 4);
    for (std::size_t begin = 0; begin < ids.size(); begin += kIdsMax * width) {
        const std::size_t num = std::min(kIdsMax, (ids.size() - begin) / width);
        bytes.fill(0);
        for (std::size_t i = 0; i < num; ++i) {
            for (std::size_t byte = 0; byte < width; ++byte)
                bytes[i * 4 + byte] = ids[begin + i * width + byte];
        }
        append_base64(to, std::span(bytes).first(num * 4));
    }
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

void write_routed_experts(
    JsonWriter& json,
    const std::optional<messages::Routes>& routes,
    std::int64_t start,
    std::int64_t num_tokens
) {
    const messages::Routes none{.start = start};
    const messages::Routes& given = routes ? *routes : none;
    json.key("routed_experts");
    if (given.num_rows() == std::max<std::int64_t>(num_tokens - 1 - start, 0)) {
        std::string text = "\"";
        append_int32(text, given);
        json.raw(text += '"');
    } else {
        json.null();
    }
    json.key("routed_experts_start_len").integer(start).key("routed_experts_spans");
    write_spans(json, given);
}

}  // namespace pitstop::http
