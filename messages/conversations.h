// Conversations: turns that continue from each other's tokens, so that no token is sent or made
// twice. The data door keeps the tokens of each turn; a later turn names an earlier turn by its
// rid. SGLang's users call a conversation a session.
//
// A conversation belongs to the client that opened it. It ends when this client closes it or
// leaves, or after its idle time. If the doors are full, the least recently used conversation ends.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

inline constexpr std::size_t kConversationBytesMax = 256;  // of an id
inline constexpr double kConversationIdleMax = 86400 * 7;  // seconds

// Identifies a conversation inside the tree; never reused.
enum class ConversationId : std::uint64_t {};

// The part of a conversation that a request's prompt continues. The turn `after` has tokens: its
// prompt, then its output. The first `offset` of these are kept, and the request's own prompt
// follows.
struct Turn {
    std::string conversation{};
    std::optional<std::string> after{};
    std::int64_t offset = 0;
    bool replace = false;
    bool drop_output = false;
    bool wants_prompt = false;
    bool opens = false;

    template <class F>
    void fields(F&& f) {
        f("conversation", conversation, "an open conversation of this client");
        f("after",
          after,
          "the rid of the turn that this turn continues; absent: this turn's prompt is whole");
        f("offset",
          offset,
          "keep this many of the first tokens of the turn `after`; 0: all; -n: all but the last n");
        f("replace",
          replace,
          "drop all turns that followed the turn `after`; without `after`, drop all turns. Dropped "
          "turns that are open are aborted");
        f("drop_output", drop_output, "keep the prompt of the turn `after` without its output");
        f("wants_prompt", wants_prompt, "the first chunk has the whole prompt's tokens");
        f("opens",
          opens,
          "open the conversation if it is not open. This turn's tokens are not kept. The "
          "conversation holds this turn's pages, and the replica that ran this turn runs the next "
          "one");
    }
    friend bool operator==(const Turn&, const Turn&) = default;
};

struct OpenConversation {
    static constexpr std::string_view kType = "open_conversation";
    static constexpr std::string_view kAbout =
        "client -> data door: begin a conversation, whose turns continue from each other's tokens.";
    CallId call{};
    std::string id{};
    std::optional<double> idle_timeout_s{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("id", id, "the conversation's name, unique among the open ones; empty: the tree makes one"
        );
        f("idle_timeout_s",
          idle_timeout_s,
          "the conversation ends this many seconds after its last turn; absent: 3600");
    }
};

struct CloseConversation {
    static constexpr std::string_view kType = "close_conversation";
    static constexpr std::string_view kAbout =
        "client -> data door: end a conversation of this client. Open turns run on.";
    CallId call{};
    std::string id{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("id", id, "the conversation");
    }
};

struct ConversationReply {
    static constexpr std::string_view kType = "conversation_reply";
    static constexpr std::string_view kAbout =
        "data door -> client: the conversation is open, or closed.";
    CallId call{};
    std::string id{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("id", id, "the conversation");
    }
};

struct EndConversations {
    static constexpr std::string_view kType = "end_conversations";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: these conversations have ended and hold no pages any "
        "more.";
    std::vector<ConversationId> ids{};

    template <class F>
    void fields(F&& f) {
        f("ids", ids, "conversations");
    }
};

std::optional<std::string> invalid(const Turn& turn);
std::optional<std::string> invalid(const OpenConversation& message);
std::optional<std::string> invalid(const CloseConversation& message);

}  // namespace pitstop::messages
