#include "http_proc/server/token_texts.h"

#include "http_proc/server/tree.h"

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace pitstop::http {
namespace {

std::string from_hex(std::string_view digits) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
        unsigned byte = 0;
        std::from_chars(digits.data() + i, digits.data() + i + 2, byte, 16);
        bytes.push_back(static_cast<char>(byte));
    }
    return bytes;
}

}  // namespace

Task<Result<>> TokenTexts::load(Tree& tree) {
    constexpr std::chrono::seconds kTimeout{30};
    const std::uint64_t number = tree.number();
    if (!texts_.empty() && tree_ == number) co_return Ok{};
    messages::Tokenize request;
    request.ids.emplace();
    for (std::int32_t id = 0; id < tree.hello().vocab_size; ++id)
        request.ids->push_back(TokenId{id});
    request.each_token = true;
    Result<messages::TokenizeReply> reply = co_await tree.call(std::move(request), kTimeout);
    if (!reply) co_return std::move(reply).error();
    tree_ = number;
    texts_ = std::move(reply->texts);
    bytes_.clear();
    for (std::size_t id = 0; id < reply->bytes.size() && id < texts_.size(); ++id) {
        if (!reply->bytes[id].empty())
            bytes_.emplace(TokenId{static_cast<std::int32_t>(id)}, from_hex(reply->bytes[id]));
    }
    special_ = {reply->special.begin(), reply->special.end()};
    co_return Ok{};
}

std::string_view TokenTexts::bytes_of(TokenId id) const {
    const auto place = bytes_.find(id);
    return place == bytes_.end() ? of(id) : std::string_view(place->second);
}

bool TokenTexts::is_special(TokenId id) const { return special_.contains(id); }

std::string_view TokenTexts::of(TokenId id) const {
    const auto index = static_cast<std::size_t>(raw(id));
    return index < texts_.size() ? std::string_view(texts_[index]) : std::string_view();
}

}  // namespace pitstop::http
