#include "http_proc/errors.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace pitstop {
namespace {

using Json = nlohmann::ordered_json;

std::string_view openai_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 429:
            return "rate_limit_error";
        default:
            return status < 500 ? "invalid_request_error" : "server_error";
    }
}

Json openai_code(int status) {
    if (status == 401) return "invalid_api_key";
    if (status == 404) return "not_found";
    return nullptr;
}

Json body_of(Dialect dialect, int status, std::string_view message) {
    switch (dialect) {
        case Dialect::kOpenAi:
            return {
                {"error",
                 {{"message", message},
                  {"type", openai_type(status)},
                  {"param", nullptr},
                  {"code", openai_code(status)}}}};
        case Dialect::kVllm:
            return {
                {"error",
                 {{"message", message},
                  {"type", reason_phrase(status)},
                  {"param", nullptr},
                  {"code", status}}}};
        case Dialect::kSglang:
        case Dialect::kPitstop:
            break;
    }
    // Of a key that is missing or wrong; other refusals say why.
    if ((status == 401 || status == 403) && message == reason_phrase(status))
        return {{"error", message}};
    return {
        {"error", {{"message", message}}},
        {"object", "error"},
        {"message", message},
        {"type", status < 500 ? std::string(reason_phrase(status)) : std::to_string(status)},
        {"param", nullptr},
        {"code", status}};
}

}  // namespace

int status_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidArgument:
        case ErrorCode::kMalformed:
        case ErrorCode::kTooLarge:
            return 400;
        case ErrorCode::kPermissionDenied:
            return 403;
        case ErrorCode::kNotFound:
            return 404;
        case ErrorCode::kAlreadyExists:
        case ErrorCode::kFailedPrecondition:
            return 409;
        case ErrorCode::kUnsupported:
            return 501;
        case ErrorCode::kResourceExhausted:
        case ErrorCode::kUnavailable:
        case ErrorCode::kAborted:
            return 503;
        case ErrorCode::kDeadlineExceeded:
            return 504;
        case ErrorCode::kUnknownMessage:
        case ErrorCode::kDataLoss:
        case ErrorCode::kInternal:
            return 500;
    }
    return 500;
}

std::string error_json(Dialect dialect, int status, std::string_view message) {
    return body_of(dialect, status, message).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Response error_response(Dialect dialect, int status, std::string_view message) {
    Response response = Response::json_text(status, error_json(dialect, status, message));
    if (status == 401) response.headers.push_back({"www-authenticate", "Bearer"});
    return response;
}

Response error_response(Dialect dialect, const Error& error) {
    return error_response(dialect, status_of(error.code), error.message);
}

}  // namespace pitstop
