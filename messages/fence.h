// A question without an effect, for a client that must know what the data door has read. The doors
// are two sockets: a client waits for the answer before it sends an admin call that concerns
// requests.
#pragma once

#include "base/ids.h"
#include "messages/checks.h"
#include "messages/fields.h"

#include <optional>
#include <string>
#include <string_view>

namespace pitstop::messages {

struct Fence {
    static constexpr std::string_view kType = "fence";
    static constexpr std::string_view kAbout =
        "client -> data door: does nothing. Its answer proves that the door has read all that the "
        "client sent before. Answered by `fence_reply`.";
    CallId call{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
    }
};

struct FenceReply {
    static constexpr std::string_view kType = "fence_reply";
    static constexpr std::string_view kAbout =
        "data door -> client: every message before the fence has been read, and calls at the admin "
        "door find its requests.";
    CallId call{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
    }
};

inline std::optional<std::string> invalid(const Fence& message) {
    return invalid_call(message.call);
}

}  // namespace pitstop::messages
