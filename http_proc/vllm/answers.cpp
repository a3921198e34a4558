#include "http_proc/vllm/answers.h"

#include "http_proc/server/errors.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {

Response vllm_failure(const Error& error) { return error_response(Dialect::kVllm, error); }

Response vllm_load_failure(const Error& error) {
    const bool is_the_adapters =
        error.code == ErrorCode::kUnsupported || error.code == ErrorCode::kDataLoss ||
        error.code == ErrorCode::kNotFinite || error.code == ErrorCode::kResourceExhausted;
    const int status = is_the_adapters ? 400 : status_of(error.code);
    return error_response(Dialect::kVllm, status, error.message);
}

nlohmann::ordered_json ids_json(std::span<const TokenId> ids) {
    auto list = nlohmann::ordered_json::array();
    for (const TokenId id : ids) list.push_back(raw(id));
    return list;
}

Response vllm_text_refusal(const Error& error) {
    const int status = error.code == ErrorCode::kUnsupported ? 400 : status_of(error.code);
    return error_response(Dialect::kVllm, status, error.message);
}

}  // namespace pitstop::http
