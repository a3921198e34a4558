#include "http_proc/generation/request_checks.h"

#include "base/utf8.h"

namespace pitstop::http {

Result<> check_model(Exchange& exchange, const std::string& model) {
    if (exchange.server().serves(model)) return Ok{};
    return make_error(
        ErrorCode::kNotFound, "The model `{}` does not exist.", utf8_prefix(model, 128)
    );
}

Result<> check_tokens(Exchange& exchange, std::string_view field, std::span<const TokenId> ids) {
    const std::int64_t vocab_size = exchange.tree().hello().vocab_size;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (raw(ids[i]) >= 0 && raw(ids[i]) < vocab_size) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}[{}] is token {}; the model has tokens [0, {})",
            field,
            i,
            raw(ids[i]),
            vocab_size
        );
    }
    return Ok{};
}

Result<> check_is_json(const Request& request) {
    if (is_json(request)) return Ok{};
    return Error{
        ErrorCode::kInvalidArgument, "the content type of a request must be application/json"};
}

}  // namespace pitstop::http
