// Error codes of failed system calls.
#pragma once

#include "base/result.h"

#include <cerrno>

namespace pitstop {

// Returns kResourceExhausted if descriptors, memory or disk space ran out: a later call may
// succeed. Returns kNotFound for a file that does not exist; else `otherwise`.
[[nodiscard]] constexpr ErrorCode code_of_errno(int number, ErrorCode otherwise) {
    switch (number) {
        case EMFILE:
        case ENFILE:
        case ENOMEM:
        case ENOSPC:
        case EDQUOT:
        case EFBIG:
            return ErrorCode::kResourceExhausted;
        case ENOENT:
            return ErrorCode::kNotFound;
        default:
            return otherwise;
    }
}

}  // namespace pitstop
