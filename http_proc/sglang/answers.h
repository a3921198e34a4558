// The answers of SGLang's control routes, except for errors of the shapes in server/errors.h.
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

namespace pitstop::http {

// Answers {"success": false, "message": M}, with the two shapes of errors that other clients of
// SGLang read. The status is 400 for all errors, as SGLang's clients expect, unless the tree is
// gone or late.
[[nodiscard]] Response sglang_failure(const Error& error);

}  // namespace pitstop::http
