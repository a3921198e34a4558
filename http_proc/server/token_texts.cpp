#include "http_proc/server/token_texts.h"

#include "http_proc/server/tree.h"

#include <chrono>
#include <cstddef>
#include <utility>

namespace pitstop::http {

Task<Result<>> TokenTexts::load(Tree& tree) {
    constexpr std::chrono::seconds kTimeout{30};
    if (!texts_.empty()) co_return Ok{};
    messages::Tokenize request;
    request.ids.emplace();
    for (std::int32_t id = 0; id < tree.hello().vocab_size; ++id)
        request.ids->push_back(TokenId{id});
    request.each_token = true;
    Result<messages::TokenizeReply> reply = co_await tree.call(std::move(request), kTimeout);
    if (!reply) co_return std::move(reply).error();
    texts_ = std::move(reply->texts);
    co_return Ok{};
}

std::string_view TokenTexts::of(TokenId id) const {
    const auto index = static_cast<std::size_t>(raw(id));
    return index < texts_.size() ? std::string_view(texts_[index]) : std::string_view();
}

}  // namespace pitstop::http
