// Writes errors in the shapes that the clients of each dialect read.
//
//   SGLang    {"error": {"message": M}, "object": "error", "message": M, "type": T, "param": null,
//              "code": 400}: SGLang's two shapes in one, because its clients read either
//   OpenAI    {"error": {"message": M, "type": "invalid_request_error", "param": null, "code": C}}
//   vLLM      {"error": {"message": M, "type": "Bad Request", "param": null, "code": 400}}
//   Anthropic {"type": "error", "error": {"type": "invalid_request_error", "message": M}}
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"
#include "http_proc/server/router.h"

#include <string>
#include <string_view>

namespace pitstop::http {

[[nodiscard]] int status_of(ErrorCode code);

// Returns only the body, for errors within a stream.
[[nodiscard]] std::string error_json(Dialect dialect, int status, std::string_view message);
// For a prompt that is too long, uses the words that the dialect's clients search for.
[[nodiscard]] std::string error_json(Dialect dialect, int status, const Error& error);
[[nodiscard]] Response error_response(Dialect dialect, int status, std::string_view message);
[[nodiscard]] Response error_response(Dialect dialect, int status, const Error& error);
[[nodiscard]] Response error_response(Dialect dialect, const Error& error);

}  // namespace pitstop::http
