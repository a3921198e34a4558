// The added and special tokens of a tokenizer.json: strings that are found in the text before any
// other step, and become one token each.
//
// Thread: any after finish(); immutable then.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "text/normalizer.h"
#include "text/vocab.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace pitstop::text {

struct AddedToken {
    std::string content{};
    bool single_word = false;  // not inside a word
    bool lstrip = false;       // includes the white space before it
    bool rstrip = false;       // includes the white space after it
    bool normalized = false;   // normalized, and searched for in the normalized text
    bool special = false;      // omitted from decoded text on request
};

// Finds the leftmost of several strings; among strings that begin at the same place, the longest.
class StringMatcher {
  public:
    struct Match {
        std::size_t begin = 0;
        std::size_t end = 0;
        TokenId id{};
    };

    // REQUIRES: not empty, not inserted before.
    void insert(std::string_view text, TokenId id);
    [[nodiscard]] bool is_empty() const { return nodes_.size() == 1; }
    [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from) const;

  private:
    struct Node {
        std::optional<TokenId> id{};  // a string ends here
        std::string bytes{};          // one per edge
        std::vector<std::uint32_t> targets{};
    };
    [[nodiscard]] std::optional<std::uint32_t> follow(const Node& node, char byte) const;

    std::vector<Node> nodes_{1};
    std::array<bool, 256> begins_{};  // [byte]: whether some string begins with it
    // The common prefix of all strings. The text is searched for its last byte ('|' of "<|", '<' of
    // "▁<"), which is the rarest.
    std::string prefix_{};
};

class AddedTokens {
  public:
    static constexpr std::size_t kTokensMax = 1 << 16;

    // A later token with the same id replaces the earlier one, as in the reference.
    Result<> insert(TokenId id, AddedToken token, const Normalizer& normalizer);
    // Builds the search. kAlreadyExists: two tokens search for the same text.
    Result<> finish();

    [[nodiscard]] std::optional<TokenId> find(std::string_view content) const;
    // Returns the text that the id decodes to: the token's content, normalized if its match
    // is normalized.
    [[nodiscard]] std::optional<std::string_view> text_of(TokenId id) const;
    // Returns every id, of these tokens and of the model's, whose text is that of a special token.
    [[nodiscard]] std::vector<TokenId> special_ids(const Vocab& vocab) const;
    [[nodiscard]] bool contains(TokenId id) const { return tokens_.contains(raw(id)); }
    // Returns one more than the largest id.
    [[nodiscard]] std::int32_t id_end() const {
        return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1;
    }
    [[nodiscard]] std::size_t num_tokens() const { return tokens_.size(); }

    // A stretch of text, and its token if it is one.
    struct Split {
        std::size_t begin = 0;
        std::size_t end = 0;
        std::optional<TokenId> id{};
    };
    enum class Kind { kAsIs, kNormalized };  // which tokens to search for
    // Appends the stretches of `text`. REQUIRES: valid UTF-8.
    void split(std::string_view text, Kind kind, std::vector<Split>& out) const;

  private:
    struct Entry {
        AddedToken token{};
        std::string text{};  // the searched text, which is also what the id decodes to
    };
    std::map<std::int32_t, Entry> tokens_{};  // [id]
    std::unordered_map<std::string, TokenId> ids_{};
    std::unordered_set<std::string> special_{};
    StringMatcher as_is_{};
    StringMatcher normalized_{};
};

}  // namespace pitstop::text
