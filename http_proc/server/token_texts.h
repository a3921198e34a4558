// The text of every token, for logprobs with texts. Fetched from each tree when first needed, and
// kept, so that later answers do not wait.
//
// Bounded: the vocabulary, some megabytes.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "http_proc/server/task.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace pitstop::http {

class Tree;

class TokenTexts {
  public:
    // Errors: the tree's.
    Task<Result<>> load(Tree& tree);

    // Returns a token's text, in which part of a character is U+FFFD; empty for an unused id.
    // REQUIRES: load() succeeded.
    [[nodiscard]] std::string_view of(TokenId id) const;
    // Returns the bytes that the token adds to the text before it; they may be part of a character.
    // REQUIRES: load() succeeded.
    [[nodiscard]] std::string_view bytes_of(TokenId id) const;
    [[nodiscard]] bool is_special(TokenId id) const;

  private:
    std::uint64_t tree_ = 0;                            // the Tree::number() of texts_
    std::vector<std::string> texts_{};                  // by id; empty: not loaded yet
    std::unordered_map<TokenId, std::string> bytes_{};  // only where the bytes differ from the text
    std::unordered_set<TokenId> special_{};
};

}  // namespace pitstop::http
