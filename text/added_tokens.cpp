#include "text/added_tokens.h"

#include "base/check.h"
#include "text/unicode.h"

#include <algorithm>
#include <utility>

namespace pitstop::text {
namespace {

bool begins_with_word(std::string_view text) {
    std::size_t pos = 0;
    return !text.empty() && word_set().contains(next_code_point(text, pos));
}

// Returns where the last code point begins. REQUIRES: !text.empty().
std::size_t last_begin(std::string_view text) {
    std::size_t last = text.size() - 1;
    while (is_continuation_byte(text[last])) --last;
    return last;
}

bool ends_with_word(std::string_view text) {
    return !text.empty() && begins_with_word(text.substr(last_begin(text)));
}

std::size_t trailing_space_begin(std::string_view text) {
    while (!text.empty()) {
        const std::size_t last = last_begin(text);
        std::size_t pos = last;
        if (!is_white_space(next_code_point(text, pos))) break;
        text = text.substr(0, last);
    }
    return text.size();
}

std::size_t leading_space_end(std::string_view text) {
    std::size_t end = 0;
    for (std::size_t pos = 0; pos < text.size(); end = pos) {
        if (!is_white_space(next_code_point(text, pos))) break;
    }
    return end;
}

}  // namespace

void StringMatcher::insert(std::string_view text, TokenId id) {
    CHECK(!text.empty());
    begins_[static_cast<unsigned char>(text[0])] = true;
    if (is_empty()) prefix_ = text;
    const auto differs = std::mismatch(prefix_.begin(), prefix_.end(), text.begin(), text.end());
    prefix_.erase(differs.first, prefix_.end());
    std::uint32_t node = 0;
    for (const char byte : text) {
        std::optional<std::uint32_t> next = follow(nodes_[node], byte);
        if (!next) {
            next = static_cast<std::uint32_t>(nodes_.size());
            nodes_[node].bytes.push_back(byte);
            nodes_[node].targets.push_back(*next);
            nodes_.emplace_back();
        }
        node = *next;
    }
    nodes_[node].id = id;
}

std::optional<std::uint32_t> StringMatcher::follow(const Node& node, char byte) const {
    const std::size_t edge = node.bytes.find(byte);
    return edge == node.bytes.npos ? std::nullopt : std::optional(node.targets[edge]);
}

std::optional<StringMatcher::Match> StringMatcher::find(std::string_view text, std::size_t from)
    const {
    for (std::size_t begin = from; begin < text.size(); ++begin) {
        if (!prefix_.empty()) {
            const std::size_t before = prefix_.size() - 1;
            const std::size_t last = text.find(prefix_.back(), begin + before);
            if (last == text.npos) return std::nullopt;
            begin = last - before;
            if (!text.substr(begin).starts_with(prefix_)) continue;
        } else if (!begins_[static_cast<unsigned char>(text[begin])]) {
            continue;
        }
        std::optional<Match> longest;
        const Node* node = nodes_.data();
        for (std::size_t pos = begin; pos < text.size(); ++pos) {
            const std::optional<std::uint32_t> next = follow(*node, text[pos]);
            if (!next) break;
            node = &nodes_[*next];
            if (node->id) longest = {begin, pos + 1, *node->id};
        }
        if (longest) return longest;
    }
    return std::nullopt;
}

Result<> AddedTokens::insert(TokenId id, AddedToken token, const Normalizer& normalizer) {
    if (tokens_.size() >= kTokensMax) {
        return make_error(ErrorCode::kTooLarge, "more than {} added tokens", kTokensMax);
    }
    Section section{.text = token.content, .at_origin = true};
    if (token.normalized) RETURN_IF_ERROR(normalizer.apply(section));
    if (section.text.empty()) {
        return make_error(
            ErrorCode::kUnsupported, "the added token '{}' is empty once normalized", token.content
        );
    }
    ids_.insert_or_assign(token.content, id);
    if (token.special) special_.insert(token.content);
    tokens_.insert_or_assign(
        raw(id), Entry{.token = std::move(token), .text = std::move(section.text)}
    );
    return Ok{};
}

Result<> AddedTokens::finish() {
    for (const auto& [id, entry] : tokens_) {
        StringMatcher& matcher = entry.token.normalized ? normalized_ : as_is_;
        const auto there = matcher.find(entry.text, 0);
        if (there && there->begin == 0 && there->end == entry.text.size()) {
            return make_error(
                ErrorCode::kAlreadyExists,
                "the added tokens {} and {} both match '{}'",
                raw(there->id),
                id,
                entry.text
            );
        }
        matcher.insert(entry.text, TokenId{id});
    }
    return Ok{};
}

std::optional<TokenId> AddedTokens::find(std::string_view content) const {
    const auto found = ids_.find(std::string(content));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string_view> AddedTokens::text_of(TokenId id) const {
    const auto found = tokens_.find(raw(id));
    return found == tokens_.end() ? std::nullopt
                                  : std::optional<std::string_view>(found->second.text);
}

std::vector<TokenId> AddedTokens::special_ids(const Vocab& vocab) const {
    std::vector<TokenId> ids;
    for (const auto& [id, entry] : tokens_) {
        if (special_.contains(entry.text)) ids.push_back(TokenId{id});
    }
    for (const std::string& content : special_) {
        const std::optional<TokenId> id = vocab.find(content);
        if (id && !contains(*id)) ids.push_back(*id);
    }
    return ids;
}

// Does exactly what the reference's AddedVocabulary::find_matches does, because its corner cases
// decide ids. For example, a match that is not a single word is skipped as a whole, and white space
// that a token took is not taken again.
void AddedTokens::split(std::string_view text, Kind kind, std::vector<Split>& out) const {
    const StringMatcher& matcher = kind == Kind::kAsIs ? as_is_ : normalized_;
    std::size_t done = 0;
    if (!matcher.is_empty()) {
        std::size_t from = 0;
        while (const auto match = matcher.find(text, from)) {
            from = match->end;
            const AddedToken& token = tokens_.at(raw(match->id)).token;
            std::size_t begin = match->begin;
            std::size_t end = match->end;
            if (token.single_word &&
                (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) {
                continue;
            }
            if (token.lstrip) begin = std::max(trailing_space_begin(text.substr(0, begin)), done);
            if (token.rstrip) end += leading_space_end(text.substr(end));
            if (done < begin) out.push_back({done, begin, std::nullopt});
            out.push_back({begin, end, match->id});
            done = end;
        }
    }
    if (done < text.size()) out.push_back({done, text.size(), std::nullopt});
}

}  // namespace pitstop::text
