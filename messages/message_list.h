// Lists of message types. Only the functions here find a frame's type in a list.
#pragma once

#include "base/result.h"
#include "messages/codec.h"

#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop::messages {

template <class... Messages>
struct MessageList {
    // Calls f.template operator()<Message>() for each message, in order.
    template <class F>
    static void for_each(F&& f) {
        (f.template operator()<Messages>(), ...);
    }

    [[nodiscard]] static constexpr bool has([[maybe_unused]] std::string_view type) {
        return ((type == Messages::kType) || ...);
    }

    // Calls f.template operator()<Message>() for the message with this type. Returns false if the
    // list has no such type.
    template <class F>
    static bool for_type(std::string_view type, F&& f) {
        return ((type == Messages::kType && (f.template operator()<Messages>(), true)) || ...);
    }

    // Decodes the frames as the message that they name, and passes it to `use`. Returns false if
    // the type is not in the list. Errors: those of decode() and of `use`.
    template <class Use>
    static Result<bool> dispatch(const Frames& frames, UnknownFields unknown_fields, Use&& use) {
        Result<bool> taken = false;
        for_type(frames.type, [&]<class Message>() {
            Result<Message> message = decode<Message>(frames, unknown_fields);
            if (!message) {
                taken = std::move(message).error();
                return;
            }
            const Result<> used = use(*std::move(message));
            taken = used ? Result<bool>(true) : Result<bool>(used.error());
        });
        return taken;
    }
};

template <class... Messages, class... Others>
MessageList<Messages..., Others...> operator+(MessageList<Messages...>, MessageList<Others...>) {
    return {};
}

// A list of only this message, or an empty list: operator| joins these into a part of a list.
template <bool is_in, class Message>
using ListedIf = std::conditional_t<is_in, MessageList<Message>, MessageList<>>;

// The messages of the first list that the second lacks, followed by the second list.
template <class... Messages, class... Others>
auto operator|(MessageList<Messages...>, MessageList<Others...> others) {
    return (ListedIf<!MessageList<Others...>::has(Messages::kType), Messages>{} + ... + others);
}

// A variant of all messages in a list.
template <class List>
struct VariantOf;
template <class... Messages>
struct VariantOf<MessageList<Messages...>> {
    using Type = std::variant<Messages...>;
};

template <class Variant>
struct ListOf;
template <class... Messages>
struct ListOf<std::variant<Messages...>> {
    using Type = MessageList<Messages...>;
};

// Decodes the frames as one of the variant's types, and appends the message to `to`. Returns what
// MessageList::dispatch returns.
template <class Variant>
Result<bool> dispatch_to(const Frames& frames, std::vector<Variant>& to) {
    return ListOf<Variant>::Type::dispatch(
        frames,
        UnknownFields::kIgnore,
        [&](auto message) -> Result<> {
            to.emplace_back(std::move(message));
            return Ok{};
        }
    );
}

}  // namespace pitstop::messages
