// The text of every token, for logprobs that show it. Fetched from the tree once, when first
// needed, so that no later answer waits for it.
//
// Bounded: the vocabulary: some megabytes.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "http_proc/server/task.h"

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

    // Part of a character is U+FFFD; an id without a token is empty. REQUIRES: load() succeeded.
    [[nodiscard]] std::string_view of(TokenId id) const;
    // Returns what the token adds to a text before it: bytes, which may be part of a character.
    // REQUIRES: as of().
    [[nodiscard]] std::string_view bytes_of(TokenId id) const;
    [[nodiscard]] bool is_special(TokenId id) const;

  private:
    std::vector<std::string> texts_{};                  // by id; empty: not loaded yet
    std::unordered_map<TokenId, std::string> bytes_{};  // where they differ from the text
    std::unordered_set<TokenId> special_{};
};

}  // namespace pitstop::http
