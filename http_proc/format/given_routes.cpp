#include "http_proc/format/given_routes.h"

#include "http_proc/format/base64.h"
#include "http_proc/format/json_body.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kAcceptedRoutes =
    "base64 of int32, or an object with data, in base64, dtype (uint8, uint16, int16 or int32) "
    "and, "
    "if wanted, shape";

template <class... Args>
Error wrong(fmt::format_string<Args...> text, Args&&... args) {
    return Error{
        ErrorCode::kInvalidArgument,
        "routed_experts: " + fmt::format(text, std::forward<Args>(args)...)};
}

Result<std::vector<std::uint8_t>> bytes_of_base64(const Json* data) {
    if (data == nullptr || !data->is_string()) return wrong("expected {}", kAcceptedRoutes);
    auto bytes = base64_decode(data->get_ref<const std::string&>());
    if (!bytes) return wrong("{}", bytes.error().message);
    return bytes;
}

std::optional<std::int64_t> id_bytes_of(std::string_view dtype) {
    if (dtype == "uint8") return 1;
    if (dtype == "uint16" || dtype == "int16") return 2;
    if (dtype == "int32") return 4;
    return std::nullopt;
}

// Reads the id at `index`. Ids of 4 bytes are signed, so one with its highest bit set is negative.
std::int64_t id_at(const GivenRoutes& given, std::size_t index) {
    const auto width = static_cast<std::size_t>(given.id_bytes);
    std::uint32_t bits = 0;
    for (std::size_t byte = 0; byte < width; ++byte)
        bits |= std::uint32_t{given.bytes[index * width + byte]} << (8 * byte);
    return width == 4 ? std::int64_t{static_cast<std::int32_t>(bits)} : std::int64_t{bits};
}

Result<> check_size(const GivenRoutes& given, const messages::RouteShape& shape) {
    const std::int64_t num_bytes = std::ssize(given.bytes);
    const std::int64_t row_bytes = shape.ids_per_row() * given.id_bytes;
    const std::int64_t num_rows = num_bytes / row_bytes;
    if (num_bytes == 0 || num_bytes % row_bytes != 0) {
        return wrong(
            "{} bytes; accepted are rows of {} layers with {} ids of {} bytes, at least one",
            num_bytes,
            shape.layers,
            shape.per_token,
            given.id_bytes
        );
    }
    if (num_rows > messages::BroughtRoutes::kBytesMax / shape.row_bytes()) {
        return wrong(
            "{} rows of {} ids; at most {} such rows are accepted",
            num_rows,
            shape.ids_per_row(),
            messages::BroughtRoutes::kBytesMax / shape.row_bytes()
        );
    }
    const std::vector<std::int64_t> actual{num_rows, shape.layers, shape.per_token};
    if (!given.shape || *given.shape == actual) return Ok{};
    return wrong(
        "its shape is {}; its bytes and the model require {}",
        Json(*given.shape).dump(),
        Json(actual).dump()
    );
}

}  // namespace

Result<GivenRoutes> given_routes(const Json& value) {
    GivenRoutes given;
    if (!value.is_object()) {
        ASSIGN_OR_RETURN(given.bytes, bytes_of_base64(&value));
        return given;
    }
    FieldReader fields(value, "routed_experts");
    std::string dtype;
    fields.read("dtype", dtype);
    std::int64_t start = 0;
    fields.read("start", start);
    if (fields.error()) return *fields.error();
    const auto id_bytes = id_bytes_of(dtype);
    if (!id_bytes) return wrong("dtype is '{}'; accepted are uint8, uint16, int16, int32", dtype);
    given.id_bytes = *id_bytes;
    if (start != 0) return wrong("start is {}; the first row is token 0's", start);
    ASSIGN_OR_RETURN(given.bytes, bytes_of_base64(fields.find("data")));
    const Json* shape = fields.find("shape");
    if (shape == nullptr) return given;
    if (!shape->is_array() || shape->size() != 3) return wrong("shape is not 3 integers");
    given.shape.emplace();
    for (const Json& entry : *shape) {
        if (!entry.is_number_integer()) return wrong("shape is not 3 integers");
        given.shape->push_back(entry.get<std::int64_t>());
    }
    return given;
}

Result<messages::BroughtRoutes> brought_routes(
    const GivenRoutes& given, const std::optional<messages::RouteShape>& shape
) {
    if (!shape || messages::invalid(*shape))
        return wrong("this model has no experts to choose from; leave it out");
    RETURN_IF_ERROR(check_size(given, *shape));
    messages::BroughtRoutes brought{.shape = *shape};
    std::vector<std::uint8_t>& ids = brought.experts.values;
    const std::size_t num_ids = given.bytes.size() / static_cast<std::size_t>(given.id_bytes);
    ids.reserve(num_ids * static_cast<std::size_t>(shape->id_bytes()));
    for (std::size_t i = 0; i < num_ids; ++i) {
        const std::int64_t id = id_at(given, i);
        if (id < 0 || id >= shape->num_experts) {
            const auto at = static_cast<std::int64_t>(i);
            return wrong(
                "token {}, layer {}, entry {} is expert {}; the model has experts [0, {})",
                at / shape->ids_per_row(),
                at / shape->per_token % shape->layers,
                at % shape->per_token,
                id,
                shape->num_experts
            );
        }
        ids.push_back(static_cast<std::uint8_t>(id & 0xff));
        if (shape->id_bytes() == 2) ids.push_back(static_cast<std::uint8_t>(id >> 8));
    }
    return brought;
}

}  // namespace pitstop::http
