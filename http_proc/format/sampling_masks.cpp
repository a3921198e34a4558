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

std::optional<Error> error_of_wide_support(const messages::Supports& supports, std::int64_t top_k) {
    const auto wide =
        std::ranges::find_if(supports.sizes, [&](std::int32_t size) { return size > top_k; });
    if (wide == supports.sizes.end()) return std::nullopt;
    return make_error(
        ErrorCode::kInvalidArgument,
        "return_sample_support: a token was drawn among {} tokens, because tokens tied with the "
        "last of the top {} are kept, and a row of rollout_sample_support has top_k tokens; repeat "
        "the request with another top_k or seed, or with /inference/v1/generate and "
        "return_sampling_mask, whose lists have any length",
        *wide,
        top_k
    );
}

void write_packed_support(
    JsonWriter& json, const messages::Supports& supports, std::int64_t top_k
) {
    static_assert(std::endian::native == std::endian::little);
    const auto width = static_cast<std::size_t>(top_k);
    std::vector<std::int32_t> rows(supports.sizes.size() * width, std::int32_t{-1});
    std::size_t at = 0;
    for (std::size_t i = 0; i < supports.sizes.size(); ++i) {
        for (std::int32_t k = 0; k < supports.sizes[i]; ++k)
            rows[i * width + static_cast<std::size_t>(k)] = raw(supports.ids[at++]);
    }
    std::string text = "\"";
    append_base64(
        text,
        {reinterpret_cast<const std::uint8_t*>(rows.data()), rows.size() * sizeof(std::int32_t)}
    );
    text += '"';
    json.begin_object().key("data").raw(text);  // data comes first, as in routes
    json.key("shape").begin_array().integer(std::ssize(supports.sizes)).integer(top_k).end_array();
    json.key("dtype").string("int32").end_object();
}

}  // namespace pitstop::http
