// Collects one answer per replica, or if parts name a rank, one answer per rank of each replica.
//
// Pure: no clock, no socket. Bounded: one part per replica or rank.
#pragma once

#include "base/ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

template <class Part>
concept OfRank = requires(const Part& part) {
    part.rank;
};

// Returns the silent ranks of a replica in words: "replica 0 (rank 1, 2)".
[[nodiscard]] inline std::string silent_ranks(
    std::size_t replica, const std::vector<std::size_t>& silent, std::size_t tp
) {
    // If no rank has answered, the silent process may be the scheduler.
    return fmt::format(
        "replica {} ({}rank {})",
        replica,
        silent.size() == tp ? "scheduler_proc, or " : "",
        fmt::join(silent, ", ")
    );
}

template <class Part>
class Gathered {
  public:
    Gathered(int num_replicas, int tp)
        : tp_(OfRank<Part> ? static_cast<std::size_t>(tp) : 1),
          parts_(static_cast<std::size_t>(num_replicas) * tp_) {}

    // Adds a part. Returns whether it was the last one. Ignores a duplicate or an unknown part.
    bool add(Part part) {
        std::size_t rank = 0;
        if constexpr (OfRank<Part>) rank = static_cast<std::size_t>(raw(part.rank));
        const auto replica = static_cast<std::size_t>(raw(part.replica));
        if (rank >= tp_ || replica >= parts_.size() / tp_) return false;
        std::optional<Part>& place = parts_[replica * tp_ + rank];
        if (place) return false;
        place = std::move(part);
        return std::ranges::all_of(parts_, [](const auto& each) { return each.has_value(); });
    }

    // REQUIRES: add() returned true.
    std::vector<Part> take() {
        std::vector<Part> all;
        for (std::optional<Part>& part : parts_) all.push_back(*std::move(part));
        return all;
    }

    // Names the processes that have not answered: "scheduler_proc[1], ...", or for ranks, "replica
    // 0 (rank 1, 2), ...".
    [[nodiscard]] std::string who_is_missing() const {
        std::vector<std::string> names;
        for (std::size_t replica = 0; replica < parts_.size() / tp_; ++replica) {
            std::vector<std::size_t> silent;
            for (std::size_t rank = 0; rank < tp_; ++rank) {
                if (!parts_[replica * tp_ + rank]) silent.push_back(rank);
            }
            if (silent.empty()) continue;
            if constexpr (OfRank<Part>) {
                names.push_back(silent_ranks(replica, silent, tp_));
            } else {
                names.push_back(fmt::format("scheduler_proc[{}]", replica));
            }
        }
        return fmt::format("{}", fmt::join(names, ", "));
    }

  private:
    std::size_t tp_;  // 1 if a replica answers for all its ranks
    std::vector<std::optional<Part>> parts_;
};

}  // namespace pitstop::tokenizer
