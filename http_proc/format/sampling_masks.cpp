#include "http_proc/format/sampling_masks.h"

#include "http_proc/format/base64.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <span>
#include <vector>

namespace pitstop::http {

void append_masks(std::string& to, const messages::Supports& supports) {
    std::size_t at = 0;
    for (const std::int32_t size : supports.sizes) {
        if (!to.empty()) to += ',';
        to += '[';
        const std::span<const TokenId> ids =
            std::span(supports.ids).subspan(at, static_cast<std::size_t>(size));
        for (const TokenId& id : ids)
            fmt::format_to(std::back_inserter(to), "{}{}", &id == ids.data() ? "" : ",", raw(id));
        to += ']';
        at += ids.size();
    }
}

void write_packed_support(
    JsonWriter& json, const messages::Supports& supports, std::int64_t top_k
) {
    static_assert(std::endian::native == std::endian::little);
    std::int64_t width = top_k;
    for (const std::int32_t size : supports.sizes) width = std::max<std::int64_t>(width, size);
    std::vector<std::int32_t> rows(
        supports.sizes.size() * static_cast<std::size_t>(width), std::int32_t{-1}
    );
    std::size_t at = 0;
    for (std::size_t i = 0; i < supports.sizes.size(); ++i) {
        for (std::int32_t k = 0; k < supports.sizes[i]; ++k)
            rows[i * static_cast<std::size_t>(width) + static_cast<std::size_t>(k)] =
                raw(supports.ids[at++]);
    }
    std::string text = "\"";
    append_base64(
        text,
        {reinterpret_cast<const std::uint8_t*>(rows.data()), rows.size() * sizeof(std::int32_t)}
    );
    text += '"';
    json.begin_object().key("data").raw(text);  // data comes first, as in routes
    json.key("shape").begin_array().integer(std::ssize(supports.sizes)).integer(width).end_array();
    json.key("dtype").string("int32").end_object();
}

}  // namespace pitstop::http
