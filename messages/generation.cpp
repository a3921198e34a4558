#include "messages/generation.h"

#include <fmt/format.h>

namespace pitstop::messages {
namespace {

using Problem = std::optional<std::string>;

}  // namespace

Problem invalid_client(const std::vector<std::string>& client) {
    if (client.size() > kClientLevelsMax) {
        return fmt::format(
            "client has {} names; at most {} are accepted", client.size(), kClientLevelsMax
        );
    }
    for (const std::string& name : client) {
        if (name.size() <= kClientNameBytesMax) continue;
        return fmt::format(
            "client has a name of {} bytes; at most {} are accepted",
            name.size(),
            kClientNameBytesMax
        );
    }
    return std::nullopt;
}

Problem invalid(const Generate& message) {
    if (auto problem = invalid_client(message.client)) return problem;
    if (!message.adapter.empty()) {
        if (auto problem = invalid_adapter_name(message.adapter)) return problem;
    }
    if (message.rid.size() > kRidBytesMax) {
        return fmt::format(
            "rid has {} bytes; at most {} are accepted", message.rid.size(), kRidBytesMax
        );
    }
    if (message.text.has_value() == message.input_ids.has_value()) {
        return message.text ? "both text and input_ids are given; give one"
                            : "neither text nor input_ids is given";
    }
    if (message.text && message.text->empty())
        return "text is empty; a prompt needs at least one token";
    if (message.input_ids) {
        if (message.input_ids->empty())
            return "input_ids is empty; a prompt needs at least one token";
        if (static_cast<std::int64_t>(message.input_ids->size()) > kPromptTokensMax) {
            return fmt::format(
                "input_ids has {} tokens; at most {} are accepted",
                message.input_ids->size(),
                kPromptTokensMax
            );
        }
    }
    if (message.turn) {
        if (auto problem = invalid(*message.turn)) return problem;
    }
    if (message.kv_max_lag < 0)
        return fmt::format("kv_max_lag is {}; accepted is 0 or more", message.kv_max_lag);
    if (message.kv_max_lag > 0 && message.kv_tolerance != KvTolerance::kMaxLag)
        return "kv_max_lag needs kv_tolerance max_lag";
    if (!message.text_output && !message.sampling.stop.empty())
        return "stop texts need text_output";
    if (message.routed_experts_start && *message.routed_experts_start < 0) {
        return fmt::format(
            "routed_experts_start is {}; accepted is 0 to the length of the prompt",
            *message.routed_experts_start
        );
    }
    if (message.routed_experts) {
        if (auto problem = invalid(*message.routed_experts)) return "routed_experts: " + *problem;
    }
    if (message.draft_ids && message.draft_ids->size() > kDraftIdsMax) {
        return fmt::format(
            "draft_ids has {} tokens; at most {} are accepted",
            message.draft_ids->size(),
            kDraftIdsMax
        );
    }
    if (message.draft_key &&
        (message.draft_key->empty() || message.draft_key->size() > kDraftKeyBytesMax)) {
        return fmt::format(
            "draft_key has {} bytes; accepted are 1 to {}",
            message.draft_key->size(),
            kDraftKeyBytesMax
        );
    }
    if (auto problem = invalid(message.sampling)) return "sampling: " + *problem;
    return invalid(message.logprobs);
}

Problem invalid(const Cancel& message) {
    if (message.rids.empty() && message.calls.empty())
        return "rids and calls are empty; name the requests or calls to end";
    return std::nullopt;
}

}  // namespace pitstop::messages
