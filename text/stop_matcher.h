// Finds stop strings in a stream of text that arrives in pieces cut anywhere.
//
// Text that may begin a stop string is held back until that is ruled out. The match is the one that
// is complete first; among those complete at the same byte, the longest. So it does not depend on
// the cuts, and text after the first complete match is never looked at.
//
// Source: Aho and Corasick 1975, "Efficient string matching"; one step per byte, over the trie of
// all stop strings.
//
// Thread:  a StopStrings is immutable and may be shared; a StopMatcher belongs to one thread.
// Bounded: kStopsMax strings of kStopBytesMax bytes; a matcher holds less than the longest of them.
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
        std::uint32_t fallback = 0;  // the longest proper suffix of this node that is a node
        std::uint32_t depth = 0;     // bytes from the root
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
        std::size_t stop_index = 0;      // in the list passed to StopStrings::create
        std::size_t position_bytes = 0;  // of the stop string's beginning in all pushed text
    };
    enum class Trim { kStop, kNothing };  // whether to cut the matched string from the text

    // A `shared_ptr`, because requests with the same stop strings share them, and so do the choices
    // of one request.
    StopMatcher(std::shared_ptr<const StopStrings> stops, Trim trim)
        : stops_(std::move(stops)), trim_(trim) {}

    // Appends to `text` the part of the pieces so far that is certainly before any stop string.
    // After a match it is complete, with the matched string unless that is trimmed; the text after
    // it is dropped, and so is every later piece.
    std::optional<Match> push(std::string_view piece, std::string& text);
    // No more pieces follow: appends the held text.
    void finish(std::string& text);

    [[nodiscard]] const std::optional<Match>& match() const { return match_; }

  private:
    std::shared_ptr<const StopStrings> stops_;
    Trim trim_;
    std::uint32_t node_ = 0;     // the longest suffix of the text that begins a stop string
    std::string held_{};         // the text of that suffix
    std::size_t num_bytes_ = 0;  // bytes of all pushed text
    std::optional<Match> match_{};
};

}  // namespace pitstop::text
