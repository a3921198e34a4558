#include "http_proc/server/model_formats.h"

#include "http_proc/server/tree.h"

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <functional>
#include <utility>

namespace pitstop::http {

std::string chat_template_in(std::string_view tokenizer_config) {
    const auto config =
        nlohmann::json::parse(tokenizer_config, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return {};
    const auto found = config.find("chat_template");
    return found != config.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool ModelFormats::are_of(const Tree& tree) const {
    return (!args_.finds_calls && !args_.finds_thinking) || tree_ == tree.number();
}

void ModelFormats::find(std::uint64_t tree, std::string_view chat_template) {
    tree_ = tree;
    if (args_.finds_thinking) formats_.thinking = thinking_format_in(chat_template);
    if (args_.finds_calls) formats_.calls = tool_format_in(chat_template);
}

void ModelFormats::follow(Tree& tree) {
    const std::uint64_t number = tree.number();
    if (are_of(tree) || asked_ == number || !tree.client().is_connected()) return;
    asked_ = number;
    tree.client().call(
        messages::DescribeTokenizer{},
        std::function<void(Result<messages::TokenizerReply>)>(
            [this, number](Result<messages::TokenizerReply> reply) {
                if (asked_ == number) asked_ = 0;
                if (reply) return find(number, chat_template_in(reply->config));
                spdlog::warn("the chat template of the next tree: {}", reply.error().message);
            }
        )
    );
}

}  // namespace pitstop::http
