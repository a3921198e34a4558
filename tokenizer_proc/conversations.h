// The open conversations, with the tokens of each turn, so that a later turn continues from them
// (messages/conversations.h).
//
// A turn stores which turn it continues, how many of that turn's tokens it keeps, and its own
// tokens. So a long conversation is stored once, however many turns it has, and turns may branch.
// The tokens of a turn that opens its conversation are not stored: its client sends whole prompts,
// and names the conversation only to group them.
//
// Thread:  the loop thread only.
// Bounded: kOpenMax conversations, kTurnsMax turns of each, kTokensMax tokens in all (kTurnTokens
//          more per turn). Beyond kOpenMax or kTokensMax, the least recently used conversation
//          without an open turn ends; beyond kOpenMax, first those that turns opened. If all
//          conversations have an open turn, the new turn is refused. A turn that opens a
//          conversation ends only conversations that turns opened. The last kEndedMax ends are
//          kept, for errors.
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
    static constexpr std::size_t kTurnTokens = 512;  // a turn's names and positions, in tokens
    static constexpr std::size_t kTurnsMax = 8192;
    static constexpr std::size_t kEndedMax = 4096;
    static constexpr Duration kIdleDefault = std::chrono::hours(1);

    struct Limits {
        std::size_t tokens_max = kTokensMax;
        std::size_t turns_max = kTurnsMax;
    };

    // `tokenizer`: null if no text arrives.
    explicit Conversations(const text::Tokenizer* tokenizer);
    Conversations(const text::Tokenizer* tokenizer, Limits limits);

    // Errors: kAlreadyExists; kResourceExhausted if kOpenMax conversations have open turns.
    Result<> open(const std::string& peer, const messages::OpenConversation& call, TimePoint now);
    // Errors: kNotFound; the text says how the conversation ended, as for check() and begin().
    Result<> close(const std::string& peer, const std::string& id);

    // Returns whether a turn could begin now. Further errors: kNotFound for the turn that it
    // continues; kInvalidArgument if that turn is open and not replaced; kAlreadyExists for the new
    // turn's rid.
    Result<> check(const std::string& peer, const std::string& rid, const messages::Turn& turn)
        const;

    // The state with which a turn begins.
    struct Begin {
        // absent: there was no room for the conversation that the turn would open
        std::optional<messages::ConversationId> id{};
        std::int64_t history_len = 0;        // tokens of the prompt before the turn's own
        std::optional<ReplicaId> replica{};  // the replica that ran the previous turn
        std::vector<std::string> dropped{};  // the rids of turns that it replaces
        std::vector<RequestKey> replaced{};  // open turns to end: `dropped` and the previous turn
    };
    // Prepends to the prompt the tokens that the turn keeps of earlier turns. If it keeps any,
    // removes the tokenizer's begin token from the turn's own tokens. Errors: those of check();
    // kResourceExhausted if there is no room for the turn.
    Result<Begin> begin(
        const OpenRequest& request,
        const messages::Turn& turn,
        std::vector<TokenId>& prompt,
        TimePoint now
    );
    // Drops the turns that the new turn replaces, and adds the turn of a request that was sent.
    // REQUIRES: begin() just succeeded.
    void add(
        OpenRequest& request,
        const messages::Turn& turn,
        const Begin& begun,
        std::span<const TokenId> prompt
    );
    // Records a chunk of a turn's output, and completes the chunk's counts and prompt. Drops a turn
    // that ends with an error, unless other turns continue from it.
    void take(OpenRequest& request, messages::OutputChunk& chunk, TimePoint now);
    // The request of the turn has ended.
    void end_turn(const OpenRequest& request, TimePoint now);
    // The request of the turn has failed: drops the turn, unless other turns continue from it.
    void drop(const OpenRequest& request);

    // expire() ends conversations whose idle time is over; lose() ends those of a client that left.
    void expire(TimePoint now) { expire_except(now, /*kept=*/nullptr); }
    void lose(const std::string& peer);
    // Returns the conversations that have ended since the last call, to tell the replicas.
    [[nodiscard]] std::vector<messages::ConversationId> take_ended() {
        return std::exchange(ended_, {});
    }

    [[nodiscard]] TimePoint next_deadline() const { return next_look_; }
    [[nodiscard]] std::vector<std::string> peers() const;
    [[nodiscard]] std::size_t size() const { return by_name_.size(); }
    [[nodiscard]] std::size_t num_tokens() const { return num_tokens_; }

  private:
    using Name = std::pair<std::string, std::string>;  // the client and the id
    struct TurnTokens {
        std::optional<std::string> parent{};
        std::size_t num_kept = 0;    // the parent's tokens that are kept
        std::vector<TokenId> own{};  // tokens after the kept ones: the prompt's, then the output's
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
        bool is_named = false;     // opened by a turn: no turn's tokens are kept
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
    // Returns the least recently used conversation that may end and has no open turn; null: none.
    template <class May>
    [[nodiscard]] Conversation* oldest_of(const May& may_end);
    // The tokens that a turn adds, and those of the turns that it replaces.
    struct Change {
        std::size_t num_added = 0;
        std::size_t num_freed = 0;
    };
    [[nodiscard]] static std::size_t size_of(const TurnTokens& turn) {
        return turn.own.size() + kTurnTokens;
    }
    [[nodiscard]] bool has_room(const Change& change) const {
        return num_tokens_ - change.num_freed + change.num_added <= limits_.tokens_max;
    }
    [[nodiscard]] Error too_much(const Conversation& of) const;
    void expire_except(TimePoint now, const Conversation* kept);
    void make_room(TimePoint now, const Change& change, const Conversation* kept);

    Limits limits_{};
    std::optional<TokenId> begin_token_{};  // the token with which the tokenizer begins texts
    std::map<Name, Conversation> by_name_{};
    std::map<messages::ConversationId, Name> names_{};
    messages::ConversationId next_id_{1};
    std::size_t num_tokens_ = 0;
    TimePoint next_look_ = TimePoint::max();  // when some idle time may be over, at the earliest
    std::vector<messages::ConversationId> ended_{};
    std::deque<std::pair<Name, std::string>> why_ended_{};
};

}  // namespace pitstop::tokenizer
