// The answers of SGLang's control routes, besides errors.
#pragma once

#include "base/result.h"
#include "http_proc/format/message.h"

namespace pitstop::http {

// Answers {"success": false, "message": M}, and the two shapes of errors that its other clients
// read. The status is 400 for all errors, as SGLang's clients expect, except if the tree is
// gone or late.
[[nodiscard]] Response sglang_failure(const Error& error);

}  // namespace pitstop::http
