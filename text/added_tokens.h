// Keeps the added and special tokens of a tokenizer.json: strings that are found in the text before
// anything else is done to it, and become one token each.
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
    bool lstrip = false;       // takes the white space before it
    bool rstrip = false;       // takes the white space behind it
    bool normalized = false;   // looked for, itself normalized, in the normalized text
    bool special = false;      // left out of decoded text on request
};

// Finds the leftmost of several strings, of those that begin together the longest.
class StringMatcher {
  public:
    struct Match {
        std::size_t begin = 0;
        std::size_t end = 0;
        TokenId id{};
    };

    // REQUIRES: not empty, not there yet.
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
    std::array<bool, 256> begins_{};  // [byte]: some string begins with it
    // All strings begin with this. Its last byte ('|' of "<|", '<' of "▁<") is the rarest, so that
    // is what the text is searched for.
    std::string prefix_{};
};

class AddedTokens {
  public:
    static constexpr std::size_t kTokensMax = 1 << 16;

    // A later token of the same id replaces the one before, as in the reference.
    Result<> insert(TokenId id, AddedToken token, const Normalizer& normalizer);
    // Builds the search. kAlreadyExists: two tokens look for the same text.
    Result<> finish();

    [[nodiscard]] std::optional<TokenId> find(std::string_view content) const;
    // Returns what the id decodes to: its content, normalized if it is matched so.
    [[nodiscard]] std::optional<std::string_view> text_of(TokenId id) const;
    // Lists every id, of these tokens and of the model's, whose text is a special token's.
    [[nodiscard]] std::vector<TokenId> special_ids(const Vocab& vocab) const;
    [[nodiscard]] bool contains(TokenId id) const { return tokens_.contains(raw(id)); }
    // Returns one more than the largest id.
    [[nodiscard]] std::int32_t id_end() const {
        return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1;
    }
    [[nodiscard]] std::size_t num_tokens() const { return tokens_.size(); }

    // Holds a stretch of text, and the token it is, if it is one.
    struct Split {
        std::size_t begin = 0;
        std::size_t end = 0;
        std::optional<TokenId> id{};
    };
    enum class Kind { kAsIs, kNormalized };  // which tokens to look for
    // Appends the stretches of `text`. REQUIRES: valid UTF-8.
    void split(std::string_view text, Kind kind, std::vector<Split>& out) const;

  private:
    struct Entry {
        AddedToken token{};
        std::string text{};  // what is looked for, and what the id decodes to
    };
    std::map<std::int32_t, Entry> tokens_{};  // [id]
    std::unordered_map<std::string, TokenId> ids_{};
    std::unordered_set<std::string> special_{};
    StringMatcher as_is_{};
    StringMatcher normalized_{};
};

}  // namespace pitstop::text
