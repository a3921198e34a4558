// The open conversations: the tokens of each turn, so that a later turn continues from them
// (messages/conversations.h).
//
// A turn knows the turn that it continues, how many of that one's tokens it keeps, and its own: so
// a long conversation is stored once, however many turns it has, and turns may branch. A turn that
// opens its conversation is not kept: its client sends whole prompts, and only names what belongs
// together.
//
// Thread:  the loop thread only.
// Bounded: kOpenMax conversations, kTurnsMax turns of each, and kTokensMax tokens of all together,
//          where a turn counts as kTurnTokens besides its own. Beyond the first or the last, the
//          least recently used conversation without an open turn ends, and those that turns opened
//          before others; if all have one, the new turn is refused. A turn that opens ends only
//          such. The ends of the last kEndedMax are remembered, for errors.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/conversations.h"
#include "messages/generation.h"
#include "text/tokenizer.h"
#include "tokenizer_proc/request_table.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

class Conversations {
  public:
    static constexpr std::size_t kOpenMax = 4096;
    static constexpr std::size_t kTokensMax = std::size_t{1} << 26;  // 256 MiB
    static constexpr std::size_t kTurnTokens = 512;  // a turn's names and places, in tokens' bytes
    static constexpr std::size_t kTurnsMax = 8192;
    static constexpr std::size_t kEndedMax = 4096;
    static constexpr Duration kIdleDefault = std::chrono::hours(1);

    // `tokenizer`: null if no text arrives.
    explicit Conversations(const text::Tokenizer* tokenizer);

    // Errors: kAlreadyExists; kResourceExhausted if there are kOpenMax with open turns.
    Result<> open(const std::string& peer, const messages::OpenConversation& call, TimePoint now);
    // Errors: kNotFound, which says how it ended. Like those of check() and begin().
    Result<> close(const std::string& peer, const std::string& id);

    // Returns whether a turn could begin now. Also errors: kNotFound for the turn that it
    // continues, kInvalidArgument if that one is open and is not replaced, kAlreadyExists for
    // its own rid.
    Result<> check(const std::string& peer, const std::string& rid, const messages::Turn& turn)
        const;

    // What a turn begins with.
    struct Begin {
        // absent: a turn that would have opened it, and there was no room
        std::optional<messages::ConversationId> id{};
        std::int64_t history_len = 0;        // the prompt's tokens before its own
        std::optional<ReplicaId> replica{};  // that ran the turn before
        std::vector<std::string> dropped{};  // the rids of turns that it replaces
        std::vector<RequestKey> replaced{};  // open turns: those of `dropped`, and the turn before
    };
    // Puts the tokens that the turn keeps before its own prompt. Where it keeps any, the token with
    // which the tokenizer begins texts is removed from the own ones. Errors: those of check();
    // kResourceExhausted if there is no room for it.
    Result<Begin> begin(
        const OpenRequest& request,
        const messages::Turn& turn,
        std::vector<TokenId>& prompt,
        TimePoint now
    );
    // Drops what the turn replaces, and adds the turn of a request that was sent. REQUIRES: begin()
    // just succeeded.
    void add(
        OpenRequest& request,
        const messages::Turn& turn,
        const Begin& begun,
        std::span<const TokenId> prompt
    );
    // Records a chunk of a turn's output, and completes the chunk's counts and prompt. A turn that
    // ends with an error is dropped, unless others continue from it.
    void take(OpenRequest& request, messages::OutputChunk& chunk, TimePoint now);
    // The request of the turn is closed.
    void end_turn(const OpenRequest& request, TimePoint now);
    // So it is, with an error: its turn is dropped, unless others continue from it.
    void drop(const OpenRequest& request);

    // Ends those whose idle time is over, and those of a client that is gone.
    void expire(TimePoint now);
    void lose(const std::string& peer);
    // Returns those that have ended since the last call: the replicas are told.
    [[nodiscard]] std::vector<messages::ConversationId> take_ended() {
        return std::exchange(ended_, {});
    }

    [[nodiscard]] TimePoint next_deadline() const { return next_look_; }
    [[nodiscard]] std::vector<std::string> peers() const;
    [[nodiscard]] std::size_t size() const { return by_name_.size(); }
    [[nodiscard]] std::size_t num_tokens() const { return num_tokens_; }

  private:
    using Name = std::pair<std::string, std::string>;  // the client, and the id
    struct TurnTokens {
        std::optional<std::string> parent{};
        std::size_t num_kept = 0;    // of the parent's tokens
        std::vector<TokenId> own{};  // after these: the prompt's, then the output
        std::size_t own_prompt_len = 0;
        RequestKey key{};
        bool is_open = true;
    };
    struct Conversation {
        messages::ConversationId id{};
        Name name{};
        Duration idle{};
        TimePoint last_used{};
        std::map<std::string, TurnTokens> turns{};  // by rid
        std::optional<ReplicaId> replica{};
        std::size_t num_open = 0;  // turns
        bool is_named = false;     // by a turn that opened it: no turn's tokens are kept
    };

    [[nodiscard]] Result<const Conversation*> find(const Name& name) const;
    [[nodiscard]] Conversation* find(messages::ConversationId id);
    [[nodiscard]] TurnTokens* find_turn(const OpenRequest& request);
    void close_turn(Conversation& of, TurnTokens& turn, TimePoint now);
    void count_end(Conversation& of, TimePoint now);
    Begin begin_opening(const Name& name, TimePoint now);
    [[nodiscard]] static std::size_t len_of(const TurnTokens& turn) {
        return turn.num_kept + turn.own.size();
    }
    static std::vector<TokenId> tokens_of(const Conversation& of, const TurnTokens& turn);
    static std::vector<std::string> all_after(
        const Conversation& of, const std::optional<std::string>& rid
    );
    void drop_turn(Conversation& of, const std::string& rid);
    void drop_childless(Conversation& of, const std::string& rid);
    void end(Conversation& one, std::string why);
    // The least recently used one without an open turn of those that may end; null: there is none.
    template <class May>
    [[nodiscard]] Conversation* oldest_of(const May& may_end);
    void make_room(TimePoint now, std::size_t num_needed = 0, const Conversation* kept = nullptr);

    std::optional<TokenId> begin_token_{};  // with which the tokenizer begins texts, if with any
    std::map<Name, Conversation> by_name_{};
    std::map<messages::ConversationId, Name> names_{};
    messages::ConversationId next_id_{1};
    std::size_t num_tokens_ = 0;
    TimePoint next_look_ = TimePoint::max();  // no idle time is over before
    std::vector<messages::ConversationId> ended_{};
    std::deque<std::pair<Name, std::string>> why_ended_{};
};

}  // namespace pitstop::tokenizer
