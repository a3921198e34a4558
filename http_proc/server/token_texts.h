// The text of every token, for logprobs with texts. Fetched from each tree when first needed, and
// kept, so that later answers do not wait. All requests that need the texts meanwhile share one
// fetch, because the tree needs 0.25 s for 151,936 tokens.
//
// Thread:  the server's loop.
// Bounded: the vocabulary, some megabytes; a waiter per request.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "http_proc/server/task.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace pitstop::http {

class Tree;

class TokenTexts {
  public:
    // Returns once the texts are those of the present tree. Errors: the tree's, for all requests
    // that wait for the same fetch; the next request fetches again.
    Task<Result<>> load(Tree& tree);

    // Returns a token's text, in which part of a character is U+FFFD; empty for an unused id.
    // REQUIRES: load() succeeded.
    [[nodiscard]] std::string_view of(TokenId id) const;
    // Returns the bytes that the token adds to the text before it; they may be part of a character.
    // REQUIRES: load() succeeded.
    [[nodiscard]] std::string_view bytes_of(TokenId id) const;
    [[nodiscard]] bool is_special(TokenId id) const;

  private:
    // One fetch, with the requests that wait for it.
    struct Fetch {
        std::uint64_t tree = 0;  // the Tree::number() of the tree that is asked
        std::vector<Later<bool>::Setter> waiters{};
        Result<> result = Ok{};
        std::exception_ptr thrown{};  // no memory: each waiter ends as if it had fetched itself
    };
    // Fetches, and resumes the waiters. No request's task awaits this one.
    Task<> run(Tree& tree, std::shared_ptr<Fetch> fetch);
    Task<Result<>> fetch_texts(Tree& tree, std::uint64_t number);

    std::shared_ptr<Fetch> fetch_{};    // shared with its waiters; null: none is open
    std::uint64_t tree_ = 0;            // the Tree::number() of texts_; 0: not loaded yet
    std::vector<std::string> texts_{};  // by id
    std::unordered_map<TokenId, std::string> bytes_{};  // only where the bytes differ from the text
    std::unordered_set<TokenId> special_{};
};

}  // namespace pitstop::http
