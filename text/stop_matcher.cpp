#include "text/stop_matcher.h"

#include "text/utf8.h"

#include <algorithm>
#include <deque>

namespace pitstop::text {

Result<std::shared_ptr<const StopStrings>> StopStrings::create(const std::vector<std::string>& stops
) {
    if (stops.size() > kStopsMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "{} stop strings; at most {} are accepted",
            stops.size(),
            kStopsMax
        );
    }
    std::shared_ptr<StopStrings> all(new StopStrings());
    std::vector<Node>& nodes = all->nodes_;
    for (std::size_t i = 0; i < stops.size(); ++i) {
        const std::string& stop = stops[i];
        if (stop.empty()) {
            return make_error(ErrorCode::kInvalidArgument, "stop string {} is empty", i);
        }
        if (stop.size() > kStopBytesMax) {
            return make_error(
                ErrorCode::kTooLarge,
                "stop string {} has {} bytes; at most {} are accepted",
                i,
                stop.size(),
                kStopBytesMax
            );
        }
        if (const auto bad = find_invalid_utf8(stop)) {
            return make_error(
                ErrorCode::kInvalidArgument, "stop string {} is not valid UTF-8 at byte {}", i, *bad
            );
        }
        std::uint32_t node = 0;
        for (const char byte : stop) {
            std::optional<std::uint32_t> next = all->follow(node, byte);
            if (!next) {
                next = static_cast<std::uint32_t>(nodes.size());
                auto& edges = nodes[node].edges;
                edges.emplace_back(byte, *next);
                std::sort(edges.begin(), edges.end());
                nodes.emplace_back();
                nodes.back().depth = nodes[node].depth + 1;
            }
            node = *next;
        }
        if (!nodes[node].stop) nodes[node].stop = static_cast<std::uint32_t>(i);
        all->lens_.push_back(stop.size());
    }
    // The search is breadth first: a node's fallback is shorter, and must be final before the node.
    std::deque<std::uint32_t> todo = {0};
    while (!todo.empty()) {
        const std::uint32_t node = todo.front();
        todo.pop_front();
        for (const auto& [byte, child] : nodes[node].edges) {
            if (node != 0) nodes[child].fallback = all->step(nodes[node].fallback, byte);
            if (!nodes[child].stop) nodes[child].stop = nodes[nodes[child].fallback].stop;
            todo.push_back(child);
        }
    }
    return std::shared_ptr<const StopStrings>(std::move(all));
}

std::optional<std::uint32_t> StopStrings::follow(std::uint32_t node, char byte) const {
    const auto& edges = nodes_[node].edges;
    const auto at = std::lower_bound(
        edges.begin(), edges.end(), byte, [](const auto& edge, char b) { return edge.first < b; }
    );
    if (at == edges.end() || at->first != byte) return std::nullopt;
    return at->second;
}

std::uint32_t StopStrings::step(std::uint32_t node, char byte) const {
    for (;; node = nodes_[node].fallback) {
        if (const std::optional<std::uint32_t> next = follow(node, byte)) return *next;
        if (node == 0) return 0;
    }
}

std::optional<StopMatcher::Match> StopMatcher::push(std::string_view piece, std::string& text) {
    if (match_) return match_;
    const auto& nodes = stops_->nodes_;
    for (std::size_t i = 0; i < piece.size(); ++i) {
        node_ = stops_->step(node_, piece[i]);
        if (!nodes[node_].stop) continue;
        // The withheld text and the piece up to here end with the stop string.
        const std::size_t stop_index = *nodes[node_].stop;
        const std::size_t stop_len = stops_->lens_[stop_index];
        held_ += piece.substr(0, i + 1);
        num_bytes_ += i + 1;
        match_ = Match{.stop_index = stop_index, .position_bytes = num_bytes_ - stop_len};
        if (trim_ == Trim::kStop) held_.resize(held_.size() - stop_len);
        text += held_;
        held_.clear();
        return match_;
    }
    num_bytes_ += piece.size();
    // Withholds only the longest suffix that begins a stop string.
    const std::size_t keep = nodes[node_].depth;
    held_ += piece;
    text.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return std::nullopt;
}

void StopMatcher::finish(std::string& text) {
    text += held_;
    held_.clear();
}

}  // namespace pitstop::text
