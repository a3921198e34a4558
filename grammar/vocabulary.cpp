#include "grammar/vocabulary.h"

#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace pitstop::grammar {
namespace {

void put(std::string& bytes, std::uint32_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::optional<std::uint32_t> take(std::string_view& bytes) {
    std::uint32_t number = 0;
    if (bytes.size() < sizeof(number)) return std::nullopt;
    std::memcpy(&number, bytes.data(), sizeof(number));
    bytes.remove_prefix(sizeof(number));
    return number;
}

}  // namespace

Vocabulary Vocabulary::of(
    const text::Tokenizer& tokenizer, std::int64_t vocab_len, std::span<const TokenId> end_ids
) {
    Vocabulary vocabulary;
    vocabulary.tokens.resize(static_cast<std::size_t>(vocab_len));
    const auto num = std::min<std::int64_t>(vocab_len, tokenizer.vocab_size());
    for (std::int32_t id = 0; id < num; ++id) {
        if (tokenizer.is_special(TokenId{id})) continue;
        Result<std::string> bytes = tokenizer.bytes_of(TokenId{id});
        if (bytes) vocabulary.tokens[static_cast<std::size_t>(id)] = *std::move(bytes);
    }
    for (const TokenId id : end_ids) {
        if (raw(id) >= 0 && raw(id) < vocab_len) vocabulary.end_ids.push_back(id);
    }
    std::vector<TokenId>& ends = vocabulary.end_ids;
    std::ranges::sort(ends);
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    return vocabulary;
}

std::string Vocabulary::to_bytes() const {
    std::string bytes;
    put(bytes, static_cast<std::uint32_t>(tokens.size()));
    put(bytes, static_cast<std::uint32_t>(end_ids.size()));
    for (const TokenId id : end_ids) put(bytes, static_cast<std::uint32_t>(raw(id)));
    for (const std::string& token : tokens) {
        put(bytes, static_cast<std::uint32_t>(token.size()));
        bytes += token;
    }
    return bytes;
}

Result<Vocabulary> Vocabulary::from_bytes(std::string_view bytes) {
    const Error malformed{ErrorCode::kMalformed, "a vocabulary ends early"};
    const auto num_tokens = take(bytes);
    const auto num_ends = take(bytes);
    if (!num_tokens || !num_ends) return malformed;
    Vocabulary vocabulary;
    for (std::uint32_t i = 0; i < *num_ends; ++i) {
        const auto id = take(bytes);
        if (!id) return malformed;
        vocabulary.end_ids.push_back(TokenId{static_cast<std::int32_t>(*id)});
    }
    for (std::uint32_t i = 0; i < *num_tokens; ++i) {
        const auto len = take(bytes);
        if (!len || *len > bytes.size()) return malformed;
        vocabulary.tokens.emplace_back(bytes.substr(0, *len));
        bytes.remove_prefix(*len);
    }
    return vocabulary;
}

}  // namespace pitstop::grammar
