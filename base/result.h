// Defines the errors for what may go wrong outside of this process: a request, a file, a full
// queue, a peer.
//
// An Error's message says what failed, which one, and what is accepted. Its code is part of the
// protocol (docs/protocol.md lists the names): clients switch on it, people read the message.
#pragma once

#include "base/check.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace pitstop {

enum class ErrorCode : std::uint8_t {
    kInvalidArgument,     // the caller's input is wrong; the same call fails again
    kUnknownMessage,      // no such message type
    kMalformed,           // bytes that are not what the protocol or format says
    kTooLarge,            // over a limit that the message names
    kNotFound,            // no such id, file, tensor
    kAlreadyExists,       // an id that is in use
    kFailedPrecondition,  // not in this state: paused, torn, released, stale epoch
    kResourceExhausted,   // a queue or pool is full; a later call may succeed
    kPermissionDenied,    // the file, key, door or pickle is not allowed
    kUnsupported,         // well-formed, but this build or model cannot do it
    kDeadlineExceeded,    // the call timed out; the message names the rank and phase
    kUnavailable,         // a peer is gone
    kAborted,             // ended by an abort
    kDataLoss,            // a checksum or size does not match
    kNotFinite,           // the model's values overflowed or are NaN; the message says where
    kInternal,            // a bug in pitstop
};

inline constexpr std::array kAllErrorCodes{
    ErrorCode::kInvalidArgument,
    ErrorCode::kUnknownMessage,
    ErrorCode::kMalformed,
    ErrorCode::kTooLarge,
    ErrorCode::kNotFound,
    ErrorCode::kAlreadyExists,
    ErrorCode::kFailedPrecondition,
    ErrorCode::kResourceExhausted,
    ErrorCode::kPermissionDenied,
    ErrorCode::kUnsupported,
    ErrorCode::kDeadlineExceeded,
    ErrorCode::kUnavailable,
    ErrorCode::kAborted,
    ErrorCode::kDataLoss,
    ErrorCode::kNotFinite,
    ErrorCode::kInternal,
};

// The names on the wire, in the order of the enumerators.
inline constexpr std::array<std::string_view, kAllErrorCodes.size()> kErrorCodeNames{
    "invalid_argument",
    "unknown_message",
    "malformed",
    "too_large",
    "not_found",
    "already_exists",
    "failed_precondition",
    "resource_exhausted",
    "permission_denied",
    "unsupported",
    "deadline_exceeded",
    "unavailable",
    "aborted",
    "data_loss",
    "not_finite",
    "internal",
};
[[nodiscard]] constexpr std::string_view name_of(ErrorCode code) {
    return kErrorCodeNames[static_cast<std::size_t>(code)];
}
// Inverts name_of(); a name that this build does not know becomes kInternal.
[[nodiscard]] ErrorCode error_code_named(std::string_view name);

struct Error {
    ErrorCode code = ErrorCode::kInternal;
    std::string message{};

    friend bool operator==(const Error&, const Error&) = default;
};

template <class... Args>
[[nodiscard]] Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    return {code, fmt::format(format, std::forward<Args>(args)...)};
}

struct Ok {};

// A T or an Error.
template <class T = Ok>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool has_value() const { return state_.index() == 0; }
    explicit operator bool() const { return has_value(); }

    // REQUIRES: has_value().
    T& operator*() & {
        CHECK(has_value());
        return *std::get_if<0>(&state_);
    }
    const T& operator*() const& {
        CHECK(has_value());
        return *std::get_if<0>(&state_);
    }
    T&& operator*() && {
        CHECK(has_value());
        return std::move(*std::get_if<0>(&state_));
    }
    T* operator->() { return &**this; }
    const T* operator->() const { return &**this; }

    // REQUIRES: !has_value().
    [[nodiscard]] const Error& error() const& {
        CHECK(!has_value());
        return *std::get_if<1>(&state_);
    }
    [[nodiscard]] Error&& error() && {
        CHECK(!has_value());
        return std::move(*std::get_if<1>(&state_));
    }

  private:
    std::variant<T, Error> state_;
};

}  // namespace pitstop

// Evaluates a Result; returns an error from the calling function, else assigns the value.
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration must not be in parentheses.
#define PITSTOP_CONCAT_INNER(a, b) a##b
#define PITSTOP_CONCAT(a, b) PITSTOP_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(declaration, expression)                    \
    auto PITSTOP_CONCAT(result_, __LINE__) = (expression);           \
    if (!PITSTOP_CONCAT(result_, __LINE__))                          \
        return std::move(PITSTOP_CONCAT(result_, __LINE__)).error(); \
    declaration = *std::move(PITSTOP_CONCAT(result_, __LINE__))
// NOLINTEND(bugprone-macro-parentheses)
#define RETURN_IF_ERROR(expression)                                                               \
    do {                                                                                          \
        if (auto result_here = (expression); !result_here) return std::move(result_here).error(); \
    } while (false)
