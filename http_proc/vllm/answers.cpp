#include "http_proc/vllm/answers.h"

#include "http_proc/server/errors.h"

namespace pitstop::http {

Response vllm_failure(const Error& error) { return error_response(Dialect::kVllm, error); }

Response vllm_text_refusal(const Error& error) {
    const int status = error.code == ErrorCode::kUnsupported ? 400 : status_of(error.code);
    return error_response(Dialect::kVllm, status, error.message);
}

}  // namespace pitstop::http
