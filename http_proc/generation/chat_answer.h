// The data of an answer of /v1/responses or /v1/messages, which is one sample of one chat; and the
// part of pipeline.h's Answering that both routes share.
//
// Thread: the server's loop.
#pragma once

#include "http_proc/format/chat_call.h"
#include "http_proc/format/usage.h"
#include "http_proc/generation/assistant_turn.h"
#include "http_proc/generation/pipeline.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct ChatAnswer {
    ChatCall call{};
    std::string answer_id{};
    std::string model{};
    std::int64_t created = 0;  // seconds since 1970
    std::vector<std::string> names{};
    std::vector<Prompt> prompts{};
    const TokenTexts* texts = nullptr;

    AssistantTurn::Args turn_args{};
    AssistantTurn turn{};
    Usage usage{};
    std::vector<messages::Span> spans{};
    std::vector<TokenId> prompt_ids{};
    std::vector<TokenId> token_ids{};  // of the output; empty unless requested

    // Makes the answer's id: `prefix`, then the caller's name for the answer.
    ChatAnswer(Exchange& exchange, ChatCall given, std::string_view prefix);

    // Sets the grammar of the calls. Errors: those of check_forced_call() and call_grammar().
    [[nodiscard]] Result<> hold_calls(Exchange& exchange);

    [[nodiscard]] bool is_streamed() const { return call.is_streamed; }
    [[nodiscard]] const std::string& named_model() const { return call.model; }
    // Counting the tokens of thinking needs their texts.
    [[nodiscard]] bool wants_texts() const { return turn_args.thinking_format.has_value(); }
    [[nodiscard]] std::string rid_of(std::size_t /*index*/) const { return answer_id + "-0"; }
    Task<Result<>> complete(Exchange& exchange, Prompt& prompt);
    void add_sample(std::size_t /*prompt*/, const messages::Generate& /*request*/) {}
    // Counts a chunk. Always returns true: any chunk may need an event.
    bool handle_event(const Generation::Event& event);

    // Writes pitstop's own members: the weights of each token, and the tokens if requested.
    void write_own_members(JsonWriter& json) const;
};

// Returns the HTTP status of an error of these two routes. A name in use is the caller's mistake,
// as is a chat for a model that has no chat template.
[[nodiscard]] int status_of_chat(ErrorCode code);

}  // namespace pitstop::http
