// The added and special tokens of a tokenizer.json. Their strings are found in a text before any
// other step, and each becomes one token.
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
    bool single_word = false;  // the token matches only outside words
    bool lstrip = false;       // the match includes the white space before it
    bool rstrip = false;       // the match includes the white space after it
    bool normalized = false;   // the token is normalized, and searched for in normalized text
    bool special = false;      // decoded text omits the token if the caller asks for that
};

// Finds the leftmost of several strings in a text; if several begin there, the longest of them.
class StringMatcher {
  public:
    struct Match {
        std::size_t begin = 0;
        std::size_t end = 0;
        TokenId id{};
    };

    // REQUIRES: `text` is not empty, and was not inserted before.
    void insert(std::string_view text, TokenId id);
    [[nodiscard]] bool is_empty() const { return nodes_.size() == 1; }
    [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from) const;

  private:
    struct Node {
        std::optional<TokenId> id{};  // the string that ends here
        std::string bytes{};          // the bytes of the edges
        std::vector<std::uint32_t> targets{};
    };
    [[nodiscard]] std::optional<std::uint32_t> follow(const Node& node, char byte) const;

    std::vector<Node> nodes_{1};
    std::array<bool, 256> begins_{};  // [byte]: whether a string begins with it
    // The common prefix of all strings. The search looks for the prefix's last byte ('|' of "<|",
    // '<' of "▁<"), because that byte is the rarest.
    std::string prefix_{};
};

class AddedTokens {
  public:
    static constexpr std::size_t kTokensMax = 1 << 16;

    // If several tokens have the same id, the last one is used, as in the reference.
    Result<> insert(TokenId id, AddedToken token, const Normalizer& normalizer);
    // Builds the search. Error: kAlreadyExists if two tokens search for the same text.
    Result<> finish();

    [[nodiscard]] std::optional<TokenId> find(std::string_view content) const;
    // Returns the text that the id decodes to: the token's content, normalized if the token is
    // normalized.
    [[nodiscard]] std::optional<std::string_view> text_of(TokenId id) const;
    // Returns every id, of these tokens or of the model's, that has the text of a special token.
    [[nodiscard]] std::vector<TokenId> special_ids(const Vocab& vocab) const;
    [[nodiscard]] bool contains(TokenId id) const { return tokens_.contains(raw(id)); }
    // Returns one more than the largest id.
    [[nodiscard]] std::int32_t id_end() const {
        return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1;
    }
    [[nodiscard]] std::size_t num_tokens() const { return tokens_.size(); }

    // A stretch of text, and its id if it is a token.
    struct Split {
        std::size_t begin = 0;
        std::size_t end = 0;
        std::optional<TokenId> id{};
    };
    enum class Kind { kAsIs, kNormalized };  // the tokens that are searched for
    // Appends the stretches of `text`. REQUIRES: valid UTF-8.
    void split(std::string_view text, Kind kind, std::vector<Split>& out) const;

  private:
    struct Entry {
        AddedToken token{};
        std::string text{};  // the text that is searched for, and that the id decodes to
    };
    std::map<std::int32_t, Entry> tokens_{};  // [id]
    std::unordered_map<std::string, TokenId> ids_{};
    std::unordered_set<std::string> special_{};
    StringMatcher as_is_{};
    StringMatcher normalized_{};
};

}  // namespace pitstop::text
