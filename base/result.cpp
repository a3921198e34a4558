#include "base/result.h"

namespace pitstop {

std::string_view name_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidArgument:
            return "invalid_argument";
        case ErrorCode::kUnknownMessage:
            return "unknown_message";
        case ErrorCode::kMalformed:
            return "malformed";
        case ErrorCode::kTooLarge:
            return "too_large";
        case ErrorCode::kNotFound:
            return "not_found";
        case ErrorCode::kAlreadyExists:
            return "already_exists";
        case ErrorCode::kFailedPrecondition:
            return "failed_precondition";
        case ErrorCode::kResourceExhausted:
            return "resource_exhausted";
        case ErrorCode::kPermissionDenied:
            return "permission_denied";
        case ErrorCode::kUnsupported:
            return "unsupported";
        case ErrorCode::kDeadlineExceeded:
            return "deadline_exceeded";
        case ErrorCode::kUnavailable:
            return "unavailable";
        case ErrorCode::kAborted:
            return "aborted";
        case ErrorCode::kDataLoss:
            return "data_loss";
        case ErrorCode::kInternal:
            return "internal";
    }
    return "internal";
}

ErrorCode error_code_named(std::string_view name) {
    for (int i = 0; i < static_cast<int>(ErrorCode::kInternal); ++i) {
        const auto code = static_cast<ErrorCode>(i);
        if (name_of(code) == name) return code;
    }
    return ErrorCode::kInternal;
}

}  // namespace pitstop
