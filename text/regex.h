// Compiles a pattern of a tokenizer.json, and searches text for the pattern.
//
// There are two engines, which find the same matches. Regular patterns, such as those of the known
// tokenizers, run on an automaton (regex_dfa.h). Others run on PCRE2 (UTF, JIT). Their classes are
// lists of code points, so that their meaning does not depend on the version of PCRE2.
//
// Thread: any; a Regex is immutable. A Search belongs to one thread.
#pragma once

#include "base/result.h"
#include "text/regex_dfa.h"
#include "text/regex_syntax.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::text {

struct TextSpan {
    std::size_t begin = 0;
    std::size_t end = 0;
    friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

class Regex {
  public:
    enum class Engine { kBest, kPcre2 };

    // `engine` is for tests, which compare the two.
    static Result<Regex> compile(std::string_view pattern, Engine engine = Engine::kBest);
    // Makes a pattern that matches `text` literally. REQUIRES: `text` is not empty, valid UTF-8.
    static Regex literal(std::string text);

    Regex(Regex&&) noexcept;
    Regex& operator=(Regex&&) noexcept;
    ~Regex();

    // Iterates over the matches, leftmost first, without overlaps. As in the reference, an empty
    // match never directly follows another match.
    class Search {
      public:
        // REQUIRES: `text` is valid UTF-8, and outlives the search.
        Search(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {}

        // Error: kResourceExhausted if PCRE2 needs too many steps for this pattern and text.
        Result<std::optional<TextSpan>> next();

      private:
        [[nodiscard]] Result<std::optional<TextSpan>> find(std::size_t from) const;

        const Regex& regex_;
        std::string_view text_;
        std::size_t pos_ = 0;
        std::optional<std::size_t> last_end_{};
    };

    // Calls on_match(TextSpan) for every match that a Search would find. Costs less than a
    // Search.
    template <class OnMatch>
    Result<> for_each_match(std::string_view text, OnMatch&& on_match) const;

    [[nodiscard]] bool may_match_empty() const { return may_match_empty_; }
    [[nodiscard]] const regex::Dfa* dfa() const { return dfa_ ? &*dfa_ : nullptr; }

  private:
    struct Pcre2;
    Regex();

    std::string literal_{};  // the pattern, if it is a literal; else empty
    std::optional<regex::Dfa> dfa_{};
    std::unique_ptr<Pcre2> pcre2_{};
    bool may_match_empty_ = false;
};

template <class OnMatch>
Result<> Regex::for_each_match(std::string_view text, OnMatch&& on_match) const {
    if (dfa_ && !may_match_empty_) {
        const char* const begin = text.data();
        const char* const end = begin + text.size();
        for (const char* at = begin; at != end;) {
            const char* const matched = dfa_->match(at, end);
            if (matched == nullptr) {
                at += utf8_len(*at);
                continue;
            }
            on_match(TextSpan{
                static_cast<std::size_t>(at - begin), static_cast<std::size_t>(matched - begin)});
            at = matched;
        }
        return Ok{};
    }
    if (!literal_.empty()) {
        for (std::size_t at = 0; (at = text.find(literal_, at)) != text.npos;
             at += literal_.size()) {
            on_match(TextSpan{at, at + literal_.size()});
        }
        return Ok{};
    }
    Search search(*this, text);
    for (;;) {
        ASSIGN_OR_RETURN(const std::optional<TextSpan> match, search.next());
        if (!match) return Ok{};
        on_match(*match);
    }
}

}  // namespace pitstop::text
