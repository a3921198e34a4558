#include "http_proc/server/exchange.h"

#include "base/utf8.h"

#include <fmt/format.h>

namespace pitstop::http {
namespace {

constexpr std::size_t kMapNodeBytes = 64;  // an entry of a std::map of two words, rounded by malloc

}  // namespace

std::size_t bytes_of(const messages::Generate& prompt) {
    const messages::SamplingParams& params = prompt.sampling;
    std::size_t bytes = sizeof(prompt) + prompt.rid.size();
    if (prompt.text) bytes += prompt.text->size();
    if (prompt.input_ids) bytes += prompt.input_ids->size() * sizeof(TokenId);
    for (const std::string& stop : params.stop) bytes += sizeof(std::string) + stop.size();
    bytes += params.stop_token_ids.size() * sizeof(TokenId);
    bytes += params.logit_bias.size() * kMapNodeBytes;
    bytes += params.allowed_token_ids.size() * sizeof(TokenId);
    for (const std::string& word : params.bad_words) bytes += sizeof(std::string) + word.size();
    if (prompt.routed_experts) bytes += prompt.routed_experts->experts.values.size();
    return bytes + prompt.logprobs.ids.size() * sizeof(TokenId);
}

Result<> Exchange::hold(const messages::Generate& prompt, Copies copies) {
    // The server limits the body, and the dialects limit the counts, so no product overflows.
    const std::size_t kept =
        bytes_of(prompt) * static_cast<std::size_t>(copies.num_kept) + copies.kept_bytes;
    const std::size_t more = bytes_of(prompt) * static_cast<std::size_t>(copies.num_copies) + kept;
    const std::size_t bytes = share_.bytes() + more;
    if (share_.resize(bytes)) {
        kept_bytes_ += kept;
        return Ok{};
    }
    const std::size_t bytes_max = server_->memory().bytes_max();
    if (bytes > bytes_max) {
        return make_error(
            ErrorCode::kTooLarge,
            "the prompts need {} bytes, counted once per sample (n); at most {} are accepted",
            bytes,
            bytes_max
        );
    }
    return make_error(
        ErrorCode::kResourceExhausted,
        "open requests use too much memory for {} more bytes of prompts; try again",
        more
    );
}

std::vector<std::string> Exchange::client() const {
    const Wire::Peer peer = wire_->peer();
    const bool has_keys = !server_->options().keys.api.empty();
    const std::string_view key = !has_keys ? "" : may_admin() ? "admin@" : "api@";
    const std::string_view name = request_.header("x-pitstop-client").value_or("");
    return {
        fmt::format("{}{}", key, peer.address),
        is_utf8(name) ? std::string(utf8_prefix(name, messages::kClientNameBytesMax)) : "not UTF-8",
        fmt::to_string(peer.connection)};
}

void Exchange::let_go() {
    std::string().swap(request_.body);              // an assignment would keep the memory
    static_cast<void>(share_.resize(kept_bytes_));  // shrinking always succeeds
}

}  // namespace pitstop::http
