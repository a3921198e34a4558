#include "tokenizer_proc/conversations.h"

#include "base/check.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace pitstop::tokenizer {
namespace {

constexpr std::string_view kRoom =
    "it was the least recently used, and other conversations needed its room";

}  // namespace

Conversations::Conversations(const text::Tokenizer* tokenizer)
    : Conversations(tokenizer, Limits{}) {}

Conversations::Conversations(const text::Tokenizer* tokenizer, Limits limits) : limits_(limits) {
    if (tokenizer == nullptr) return;
    const Result<std::vector<TokenId>> none = tokenizer->encode("", text::AddSpecial::kYes);
    if (none && !none->empty()) begin_token_ = none->front();
}

Result<const Conversations::Conversation*> Conversations::find(const Name& name) const {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return &found->second;
    const auto ended = std::find_if(why_ended_.rbegin(), why_ended_.rend(), [&](const auto& each) {
        return each.first == name;
    });
    if (ended != why_ended_.rend()) {
        return make_error(
            ErrorCode::kNotFound,
            "conversation '{}' has ended: {}; open another one",
            name.second,
            ended->second
        );
    }
    return make_error(
        ErrorCode::kNotFound, "no conversation '{}' of this client is open; open it", name.second
    );
}

Conversations::Conversation* Conversations::find(messages::ConversationId id) {
    const auto name = names_.find(id);
    return name == names_.end() ? nullptr : &by_name_.at(name->second);
}

Result<> Conversations::open(
    const std::string& peer, const messages::OpenConversation& call, TimePoint now
) {
    const Name name{peer, call.id};
    if (by_name_.contains(name)) {
        return make_error(
            ErrorCode::kAlreadyExists, "conversation '{}' of this client is open", call.id
        );
    }
    make_room(now, {}, /*kept=*/nullptr);
    if (by_name_.size() >= kOpenMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} conversations have open turns, the most allowed; close some",
            kOpenMax
        );
    }
    Duration idle = kIdleDefault;
    if (call.idle_timeout_s) {
        idle =
            std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*call.idle_timeout_s)
            );
    }
    const messages::ConversationId id = next_id_;
    next_id_ = static_cast<messages::ConversationId>(static_cast<std::uint64_t>(id) + 1);
    by_name_.emplace(name, Conversation{.id = id, .name = name, .idle = idle, .last_used = now});
    names_.emplace(id, name);
    next_look_ = std::min(next_look_, now + idle);
    std::erase_if(why_ended_, [&](const auto& ended) { return ended.first == name; });
    return Ok{};
}

Result<> Conversations::close(const std::string& peer, const std::string& id) {
    RETURN_IF_ERROR(find(Name{peer, id}));
    end(by_name_.at(Name{peer, id}), "it was closed");
    return Ok{};
}

Result<> Conversations::check(
    const std::string& peer, const std::string& rid, const messages::Turn& turn
) const {
    if (turn.opens) return Ok{};
    ASSIGN_OR_RETURN(const Conversation* const of, find(Name{peer, turn.conversation}));
    if (of->turns.contains(rid)) {
        return make_error(
            ErrorCode::kAlreadyExists,
            "conversation '{}' has a turn '{}'; use another rid",
            turn.conversation,
            rid
        );
    }
    if (!turn.after) return Ok{};
    const auto before = of->turns.find(*turn.after);
    if (before == of->turns.end()) {
        return make_error(
            ErrorCode::kNotFound,
            "conversation '{}' has no turn '{}'; a turn is named by its rid",
            turn.conversation,
            *turn.after
        );
    }
    if (before->second.is_open && !turn.replace) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "turn '{}' of conversation '{}' has not ended; wait for its answer, or replace it",
            *turn.after,
            turn.conversation
        );
    }
    return Ok{};
}

// If there is no room, the turn is not refused: it runs like a request without a conversation.
Conversations::Begin Conversations::begin_opening(const Name& name, TimePoint now) {
    if (!by_name_.contains(name)) {
        expire(now);
        if (by_name_.size() >= kOpenMax) {
            Conversation* const oldest =
                oldest_of([](const Conversation& one) { return one.is_named; });
            if (oldest == nullptr) return {};
            end(*oldest, std::string(kRoom));
        }
        if (!open(name.first, {.id = name.second}, now)) return {};
        by_name_.at(name).is_named = true;
    }
    Conversation& of = by_name_.at(name);
    of.last_used = now;
    return {.id = of.id, .replica = of.replica};
}

Error Conversations::too_much(const Conversation& of) const {
    return make_error(
        ErrorCode::kResourceExhausted,
        "conversation '{}' has {} turns, and another one would exceed the limits ({} turns of one "
        "conversation, {} tokens of all open ones): replace some turns, or close a conversation",
        of.name.second,
        of.turns.size(),
        limits_.turns_max,
        limits_.tokens_max
    );
}

// Collects the tokens backwards, from the last turn to the first.
std::vector<TokenId> Conversations::tokens_of(const Conversation& of, const TurnTokens& turn) {
    std::vector<TokenId> tokens(len_of(turn));
    const TurnTokens* at = &turn;
    for (std::size_t end = tokens.size(); end > 0;) {
        const std::size_t begin = std::min(at->num_kept, end);
        std::copy_n(
            at->own.begin(), end - begin, tokens.begin() + static_cast<std::ptrdiff_t>(begin)
        );
        end = begin;
        if (end > 0) at = &of.turns.at(*at->parent);
    }
    return tokens;
}

Result<Conversations::Begin> Conversations::begin(
    const OpenRequest& request,
    const messages::Turn& turn,
    std::vector<TokenId>& prompt,
    TimePoint now
) {
    if (turn.opens) return begin_opening(Name{request.peer, turn.conversation}, now);
    RETURN_IF_ERROR(check(request.peer, request.rid, turn));
    Conversation& of = by_name_.at(Name{request.peer, turn.conversation});
    of.last_used = now;
    Begin begun{.id = of.id, .replica = of.replica};
    Change change{.num_added = prompt.size() + kTurnTokens};
    if (turn.replace) begun.dropped = all_after(of, turn.after);
    for (const std::string& rid : begun.dropped) {
        const TurnTokens& dropped = of.turns.at(rid);
        change.num_freed += size_of(dropped);
        if (dropped.is_open) begun.replaced.push_back(dropped.key);
    }
    // Before make_room(): a turn that is refused anyway ends no conversation.
    if (of.turns.size() - begun.dropped.size() >= limits_.turns_max) return too_much(of);
    make_room(now, change, &of);
    if (!has_room(change)) return too_much(of);
    if (!turn.after) return begun;
    const TurnTokens& before = of.turns.at(*turn.after);
    if (turn.replace && before.is_open) begun.replaced.push_back(before.key);
    std::vector<TokenId> whole = tokens_of(of, before);
    if (turn.drop_output) whole.resize(before.num_kept + before.own_prompt_len);
    const auto len = std::ssize(whole);
    if (turn.offset != 0) {
        const std::int64_t end = turn.offset < 0 ? len + turn.offset : turn.offset;
        whole.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(end, 0, len)));
    }
    begun.history_len = std::ssize(whole);
    const bool begins_anew =
        begin_token_ && begun.history_len > 0 && !prompt.empty() && prompt.front() == *begin_token_;
    whole.insert(whole.end(), prompt.begin() + (begins_anew ? 1 : 0), prompt.end());
    prompt = std::move(whole);
    return begun;
}

void Conversations::add(
    OpenRequest& request,
    const messages::Turn& turn,
    const Begin& begun,
    std::span<const TokenId> prompt
) {
    if (!begun.id) return;
    Conversation& of = by_name_.at(Name{request.peer, turn.conversation});
    for (const std::string& rid : begun.dropped) drop_turn(of, rid);
    of.replica = request.replica;
    if (turn.opens) {
        ++of.num_open;
        request.turn = {.conversation = of.id, .keeps_tokens = false};
        return;
    }
    const auto history_len = static_cast<std::size_t>(begun.history_len);
    const std::span<const TokenId> own = prompt.subspan(history_len);
    num_tokens_ += own.size() + kTurnTokens;
    ++of.num_open;
    of.turns[request.rid] = {
        .parent = turn.after,
        .num_kept = history_len,
        .own = {own.begin(), own.end()},
        .own_prompt_len = own.size(),
        .key = request.key,
    };
    request.turn = {.conversation = of.id, .history_len = begun.history_len};
    if (turn.wants_prompt) request.turn->prompt.assign(prompt.begin(), prompt.end());
}

// Returns null if the turn was replaced, or if its conversation has ended.
Conversations::TurnTokens* Conversations::find_turn(const OpenRequest& request) {
    Conversation* const of = find(request.turn->conversation);
    if (of == nullptr) return nullptr;
    const auto turn = of->turns.find(request.rid);
    return turn != of->turns.end() && turn->second.key == request.key ? &turn->second : nullptr;
}

void Conversations::close_turn(Conversation& of, TurnTokens& turn, TimePoint now) {
    if (std::exchange(turn.is_open, false)) count_end(of, now);
}

void Conversations::count_end(Conversation& of, TimePoint now) {
    --of.num_open;
    of.last_used = now;
    next_look_ = std::min(next_look_, now + of.idle);
}

void Conversations::take(OpenRequest& request, messages::OutputChunk& chunk, TimePoint now) {
    OpenTurn& turn = *request.turn;
    chunk.prompt_ids = std::exchange(turn.prompt, {});
    if (chunk.counts) chunk.counts->history_tokens = turn.history_len;
    TurnTokens* const tokens = find_turn(request);
    if (tokens != nullptr) {
        tokens->own.insert(tokens->own.end(), chunk.tokens.begin(), chunk.tokens.end());
        num_tokens_ += chunk.tokens.size();
    }
    if (!chunk.finish) return;
    if (tokens == nullptr) return;
    Conversation* const of = find(turn.conversation);
    close_turn(*of, *tokens, now);
    if (chunk.finish->reason == messages::FinishReason::kError) drop_childless(*of, request.rid);
    make_room(now, {}, of);
}

void Conversations::end_turn(const OpenRequest& request, TimePoint now) {
    if (!request.turn) return;
    Conversation* const of = find(request.turn->conversation);
    // The conversation's replica holds the pages of the turn that just ended.
    if (of == nullptr) return ended_.push_back(request.turn->conversation);
    if (!request.turn->keeps_tokens) return count_end(*of, now);
    if (TurnTokens* const turn = find_turn(request); turn != nullptr) close_turn(*of, *turn, now);
}

void Conversations::drop(const OpenRequest& request) {
    if (request.turn && find_turn(request) != nullptr)
        drop_childless(*find(request.turn->conversation), request.rid);
}

void Conversations::drop_turn(Conversation& of, const std::string& rid) {
    const auto turn = of.turns.find(rid);
    num_tokens_ -= size_of(turn->second);
    if (turn->second.is_open) --of.num_open;
    of.turns.erase(turn);
}

void Conversations::drop_childless(Conversation& of, const std::string& rid) {
    if (all_after(of, rid).empty()) drop_turn(of, rid);
}

// Returns all turns that continue from this one, directly or indirectly; without `rid`, all turns.
std::vector<std::string> Conversations::all_after(
    const Conversation& of, const std::optional<std::string>& rid
) {
    std::vector<std::string> after;
    std::multimap<std::string_view, const std::string*> children;  // by the parent's rid
    for (const auto& [other, turn] : of.turns) {
        if (!rid) after.push_back(other);
        if (rid && turn.parent) children.emplace(*turn.parent, &other);
    }
    if (!rid) return after;
    std::vector<std::string_view> parents{*rid};
    while (!parents.empty()) {
        const auto [begin, end] = children.equal_range(parents.back());
        parents.pop_back();
        for (auto child = begin; child != end; ++child) {
            after.push_back(*child->second);
            parents.push_back(*child->second);
        }
    }
    return after;
}

void Conversations::end(Conversation& one, std::string why) {
    for (const auto& [rid, turn] : one.turns) num_tokens_ -= size_of(turn);
    ended_.push_back(one.id);
    why_ended_.emplace_back(one.name, std::move(why));
    if (why_ended_.size() > kEndedMax) why_ended_.pop_front();
    names_.erase(one.id);
    by_name_.erase(Name(one.name));
}

template <class May>
Conversations::Conversation* Conversations::oldest_of(const May& may_end) {
    Conversation* oldest = nullptr;
    for (auto& [name, one] : by_name_) {
        if (one.num_open > 0 || !may_end(one)) continue;
        if (oldest == nullptr || one.last_used < oldest->last_used) oldest = &one;
    }
    return oldest;
}

// Ends the least recently used conversations, except `kept`, until number and tokens are in bounds.
// Conversations that turns opened have no tokens: they end first, but only if there are too many
// conversations.
void Conversations::make_room(TimePoint now, const Change& change, const Conversation* kept) {
    expire_except(now, kept);
    for (;;) {
        const bool are_too_many = kept == nullptr && by_name_.size() >= kOpenMax;
        if (!are_too_many && has_room(change)) return;
        Conversation* oldest = nullptr;
        if (are_too_many) oldest = oldest_of([](const Conversation& one) { return one.is_named; });
        if (oldest == nullptr)
            oldest = oldest_of([&](const Conversation& one) {
                return &one != kept && (are_too_many || !one.is_named);
            });
        if (oldest == nullptr) return;
        end(*oldest, std::string(kRoom));
    }
}

void Conversations::expire_except(TimePoint now, const Conversation* kept) {
    if (now < next_look_) return;
    next_look_ = TimePoint::max();
    std::vector<Conversation*> over;
    for (auto& [name, one] : by_name_) {
        if (one.num_open > 0) continue;
        const TimePoint end_at = one.last_used + one.idle;
        if (end_at <= now && &one != kept) {
            over.push_back(&one);
        } else {
            next_look_ = std::min(next_look_, end_at);
        }
    }
    for (Conversation* const one : over)
        end(*one, fmt::format("it was idle for {} s", seconds(one->idle)));
}

void Conversations::lose(const std::string& peer) {
    std::vector<Conversation*> lost;
    for (auto& [name, one] : by_name_)
        if (name.first == peer) lost.push_back(&one);
    for (Conversation* const one : lost) end(*one, "its client is gone");
}

std::vector<std::string> Conversations::peers() const {
    std::vector<std::string> all;
    for (const auto& [name, one] : by_name_)
        if (all.empty() || all.back() != name.first) all.push_back(name.first);
    return all;
}

}  // namespace pitstop::tokenizer
