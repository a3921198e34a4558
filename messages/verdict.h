// The outcome of an order or a call, which every answer has: done, or an error.
#pragma once

#include "base/result.h"
#include "messages/fields.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::messages {

struct Verdict {
    std::optional<ErrorCode> code{};  // absent: done
    std::string message{};            // the error's message, or a harmless note

    Verdict() = default;
    static Verdict done(std::string note) {
        Verdict verdict;
        verdict.message = std::move(note);
        return verdict;
    }
    Verdict(Error error) : code(error.code), message(std::move(error.message)) {}

    [[nodiscard]] bool is_done() const { return !code.has_value(); }
    // REQUIRES: there was a failure. Without a code, the error is kInternal.
    [[nodiscard]] Error error() const { return {code.value_or(ErrorCode::kInternal), message}; }
    // Returns the error code's name; empty if the verdict is done.
    [[nodiscard]] std::string_view code_name() const { return code ? name_of(*code) : ""; }

    // Lists the fields `code` and `message` in the message of which this verdict is a member.
    template <class F>
    void fields_in(
        F&& f,
        std::string_view code_about = "why it was not done; absent: it was",
        std::string_view message_about = "what went wrong"
    ) {
        f("code", code, code_about);
        f("message", message, message_about);
    }
    friend bool operator==(const Verdict&, const Verdict&) = default;
};

}  // namespace pitstop::messages
