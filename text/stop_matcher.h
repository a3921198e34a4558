// Finds stop strings in a stream of text. The stream arrives in pieces, cut at any byte.
//
// Text that may begin a stop string is withheld until more text decides. The match is the stop
// string that is complete first; of those complete at the same byte, the longest. So the match does
// not depend on the cuts, and text after it is never examined.
//
// Source: Aho and Corasick 1975, "Efficient string matching". Each byte is one step in a trie of
// all stop strings.
//
// Thread:  any for a StopStrings, which is immutable; a StopMatcher belongs to one thread.
// Bounded: kStopsMax strings of kStopBytesMax bytes; a matcher's text is shorter than the longest.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::text {

class StopStrings {
  public:
    static constexpr std::size_t kStopsMax = 64;
    static constexpr std::size_t kStopBytesMax = 1024;

    // Errors: kInvalidArgument for an empty string or one that is not UTF-8; kTooLarge over a
    // limit. A repeated string counts as its first occurrence.
    static Result<std::shared_ptr<const StopStrings>> create(const std::vector<std::string>& stops);

  private:
    friend class StopMatcher;
    struct Node {
        std::vector<std::pair<char, std::uint32_t>> edges{};  // sorted
        std::uint32_t fallback = 0;  // the longest proper suffix of this node's text that is a node
        std::uint32_t depth = 0;     // the bytes from the root
        std::optional<std::uint32_t> stop{};  // the longest stop string that ends here
    };
    StopStrings() = default;
    [[nodiscard]] std::optional<std::uint32_t> follow(std::uint32_t node, char byte) const;
    [[nodiscard]] std::uint32_t step(std::uint32_t node, char byte) const;

    std::vector<Node> nodes_{1};
    std::vector<std::size_t> lens_{};  // [stop], in bytes
};

class StopMatcher {
  public:
    struct Match {
        std::size_t stop_index = 0;      // the index in the list passed to StopStrings::create
        std::size_t position_bytes = 0;  // where the stop string begins in all pushed text
    };
    enum class Trim { kStop, kNothing };  // whether the matched string is cut from the text

    // A `shared_ptr`, because requests with the same stop strings share them, as do the choices of
    // one request.
    StopMatcher(std::shared_ptr<const StopStrings> stops, Trim trim)
        : stops_(std::move(stops)), trim_(trim) {}

    // Appends to `text` the text that certainly comes before any stop string. A match completes the
    // text, including the matched string unless that is trimmed. Text after the match is dropped,
    // and so is every later piece.
    std::optional<Match> push(std::string_view piece, std::string& text);
    // Ends the stream: appends the withheld text.
    void finish(std::string& text);

    [[nodiscard]] const std::optional<Match>& match() const { return match_; }

  private:
    std::shared_ptr<const StopStrings> stops_;
    Trim trim_;
    std::uint32_t node_ = 0;     // the longest suffix of the text that begins a stop string
    std::string held_{};         // the text of that suffix
    std::size_t num_bytes_ = 0;  // the bytes of all pushed text
    std::optional<Match> match_{};
};

}  // namespace pitstop::text
