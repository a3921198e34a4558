#include "http_proc/sglang/answers.h"

#include "http_proc/server/errors.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {

Response sglang_failure(const Error& error) {
    int status = status_of(error.code);
    if (status < 500 || error.code == ErrorCode::kUnsupported ||
        error.code == ErrorCode::kAborted || error.code == ErrorCode::kDataLoss ||
        error.code == ErrorCode::kResourceExhausted) {
        status = 400;
    }
    nlohmann::ordered_json body =
        nlohmann::ordered_json::parse(error_json(Dialect::kSglang, status, error.message));
    body["success"] = false;
    return Response::json(status, body);
}

}  // namespace pitstop::http
