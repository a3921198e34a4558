#include "http_proc/generation/request_checks.h"

#include "base/utf8.h"

namespace pitstop::http {

Result<> check_model(Exchange& exchange, const std::string& model) {
    if (exchange.server().serves(model)) return Ok{};
    return make_error(
        ErrorCode::kNotFound, "The model `{}` does not exist.", utf8_prefix(model, 128)
    );
}

Result<> check_is_json(const Request& request) {
    if (is_json(request)) return Ok{};
    return Error{ErrorCode::kInvalidArgument, "the content type of a request is application/json"};
}

}  // namespace pitstop::http
