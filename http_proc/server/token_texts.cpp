#include "http_proc/server/token_texts.h"

#include "http_proc/server/tree.h"

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
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
    // Another tree may have replaced the one that was asked.
    while (tree_ != tree.number()) {
        Later<bool> over;
        std::shared_ptr<Fetch> fetch = fetch_;
        if (fetch != nullptr && fetch->tree == tree.number()) {
            fetch->waiters.push_back(over.setter());
        } else {
            fetch = std::make_shared<Fetch>(Fetch{.tree = tree.number()});
            fetch->waiters.push_back(over.setter());
            run_detached(run(tree, fetch));
        }
        co_await over;
        if (fetch->thrown) std::rethrow_exception(fetch->thrown);
        if (!fetch->result) co_return fetch->result.error();
    }
    co_return Ok{};
}

Task<> TokenTexts::run(Tree& tree, std::shared_ptr<Fetch> fetch) {
    fetch_ = fetch;
    try {
        Result<> result = co_await fetch_texts(tree, fetch->tree);
        fetch->result = std::move(result);
    } catch (...) {
        fetch->thrown = std::current_exception();
    }
    if (fetch_ == fetch) fetch_.reset();
    for (const auto& waiter : std::exchange(fetch->waiters, {})) waiter.set(true);
}

Task<Result<>> TokenTexts::fetch_texts(Tree& tree, std::uint64_t number) {
    constexpr std::chrono::seconds kTimeout{30};
    messages::Tokenize request;
    request.ids.emplace();
    for (std::int32_t id = 0; id < tree.hello().vocab_size; ++id)
        request.ids->push_back(TokenId{id});
    request.each_token = true;
    Result<messages::TokenizeReply> reply = co_await tree.call(std::move(request), kTimeout);
    if (!reply) co_return std::move(reply).error();
    std::unordered_set<TokenId> special{reply->special.begin(), reply->special.end()};
    std::unordered_map<TokenId, std::string> bytes;
    for (std::size_t id = 0; id < reply->bytes.size() && id < reply->texts.size(); ++id) {
        if (!reply->bytes[id].empty())
            bytes.emplace(TokenId{static_cast<std::int32_t>(id)}, from_hex(reply->bytes[id]));
    }
    special_ = std::move(special);
    bytes_ = std::move(bytes);
    texts_ = std::move(reply->texts);
    tree_ = number;
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
