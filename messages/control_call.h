// The structs that control calls share: the call, the part of a reply that each replica sends, and
// the reply that is made of all parts.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/verdict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pitstop::messages {

// A control call: has its caller's number and a deadline. codec_impl.h checks both in every message
// that has these two fields.
template <class Message>
concept ControlCall = requires(const Message& message) {
    requires std::is_same_v<decltype(message.call), CallId>;
    message.timeout_ms;
};

template <class F, class Call>
void call_fields(F&& f, Call& call) {
    f("call", call.call, "the caller's number for this call, not 0");
    f("timeout_ms", call.timeout_ms, "deadline; 0: the default");
}

template <class F, class Part>
void part_fields(F&& f, Part& part) {
    f("call", part.call, "the tokenizer's number for the call; 0 outside the tree");
    f("replica", part.replica, "the sender");
    part.verdict.fields_in(
        f, "error code; absent: done", "what went wrong, or what was harmless (done before)"
    );
}

// An update that was collected from calls without a session, and has taken effect.
struct CollectedVersion {
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::int64_t calls = 0;
    std::int64_t bytes = 0;

    template <class F>
    void fields(F&& f) {
        f("epoch", epoch, "the version's epoch");
        f("label", label, "its label");
        f("digest", digest, "the digest of its resident weights");
        f("calls", calls, "the number of calls that it consists of");
        f("bytes", bytes, "bytes written, all ranks");
    }
    friend bool operator==(const CollectedVersion&, const CollectedVersion&) = default;
};
// The part of a call that lets generation continue, and thereby commits a collection.
template <class Part>
concept LetsGenerationGoOn = requires {
    Part::kLetsGenerationGoOn;
};
struct NoVersion {};

// The reply that is made of all parts.
template <class Part>
struct ReplyOf {
    static constexpr std::string_view kType = Part::kReplyType;
    static constexpr std::string_view kAbout = Part::kReplyAbout;
    CallId call{};
    bool ok = false;
    Verdict verdict{};
    std::vector<Part> parts{};
    [[no_unique_address]] std::
        conditional_t<LetsGenerationGoOn<Part>, std::optional<CollectedVersion>, NoVersion>
            update{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok", ok, "the ok of every part is true");
        verdict.fields_in(
            f, "the first error's code; absent: ok", "every error, or what was harmless"
        );
        f("parts", parts, "one per replica");
        if constexpr (LetsGenerationGoOn<Part>)
            f("update",
              update,
              "the collected update that took effect before the call; absent: "
              "none");
    }
};

}  // namespace pitstop::messages
