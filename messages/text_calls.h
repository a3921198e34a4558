// The calls of the data door that only concern texts, and that no replica runs.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

struct Tokenize {
    static constexpr std::string_view kType = "tokenize";
    static constexpr std::string_view kAbout =
        "client -> data door: encode a text, or decode tokens.";
    CallId call{};
    std::optional<std::string> text{};
    std::optional<std::vector<TokenId>> ids{};
    bool add_special_tokens = true;
    bool skip_special_tokens = false;
    bool each_token = false;
    std::vector<std::string> client{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("text", text, "encode this; exactly one of text and ids");
        f("ids", ids, "decode these");
        f("add_special_tokens", add_special_tokens, "add the model's own special tokens");
        f("skip_special_tokens", skip_special_tokens, "leave special tokens out of the decoded text"
        );
        f("each_token", each_token, "also report the text of each token by itself");
        f("client", client, "the client that makes the call, as in generate");
    }
};

struct TokenizeReply {
    static constexpr std::string_view kType = "tokenize_reply";
    static constexpr std::string_view kAbout =
        "data door -> client: the tokens, and the text that they decode to.";
    CallId call{};
    std::vector<TokenId> ids{};
    std::string text{};
    std::vector<std::string> texts{};
    std::vector<std::string> bytes{};
    std::vector<TokenId> special{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ids", ids, "token ids");
        f("text", text, "their text");
        f("texts",
          texts,
          "with each_token: the text of each token; U+FFFD for a part of a character");
        f("bytes",
          bytes,
          "with each_token: per token, in hex, the bytes that the token adds to a text before it. "
          "Empty if they equal the token's text. They differ for a part of a character, and for a "
          "space that is dropped at a text's beginning");
        f("special", special, "with each_token: the special ones among ids");
    }
};

struct DescribeTokenizer {
    static constexpr std::string_view kType = "describe_tokenizer";
    static constexpr std::string_view kAbout =
        "client -> data door: the description of the tokenizer in the model's files.";
    CallId call{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
    }
};

struct TokenizerReply {
    static constexpr std::string_view kType = "tokenizer_reply";
    static constexpr std::string_view kAbout =
        "data door -> client: tokenizer_config.json, for programs that render chats themselves.";
    CallId call{};
    std::string config{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("config",
          config,
          "a JSON object: the file's members, each token as its text, tokenizer_class, and "
          "chat_template if the model has one");
    }
};

struct RenderChat {
    static constexpr std::string_view kType = "render_chat";
    static constexpr std::string_view kAbout =
        "client -> data door: renders a chat with the model's chat template. Answered by "
        "`tokenize_reply`.";
    CallId call{};
    std::string variables{};
    bool continue_final_message = false;
    std::string chat_template{};
    bool add_special_tokens = false;
    std::vector<std::string> client{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("variables",
          variables,
          "a JSON object: `messages`, and the template's other variables: tools, "
          "add_generation_prompt, enable_thinking, ... The special tokens are added");
        f("continue_final_message",
          continue_final_message,
          "the prompt ends inside the last message, which the model continues");
        f("chat_template", chat_template, "a template that replaces the model's; empty: the model's"
        );
        f("add_special_tokens",
          add_special_tokens,
          "also add the model's own special tokens; templates write their own");
        f("client", client, "the client that makes the call, as in generate");
    }
};

std::optional<std::string> invalid(const Tokenize& message);
std::optional<std::string> invalid(const RenderChat& message);
std::optional<std::string> invalid(const DescribeTokenizer& message);

}  // namespace pitstop::messages
