// Bounds the bytes that all requests together hold in this process: their bodies, and the prompts
// made of them, of which each sample has a copy until it has gone to the tree.
//
// Thread: the server's loop.
#pragma once

#include <cstddef>
#include <utility>

namespace pitstop::http {

class MemoryBudget {
  public:
    explicit MemoryBudget(std::size_t bytes_max) : bytes_max_(bytes_max) {}
    MemoryBudget(const MemoryBudget&) = delete;
    MemoryBudget& operator=(const MemoryBudget&) = delete;

    [[nodiscard]] std::size_t bytes_max() const { return bytes_max_; }
    [[nodiscard]] std::size_t held_bytes() const { return held_bytes_; }

    // Holds what one request takes, and gives it back at the end. The budget outlives it.
    class Share {
      public:
        explicit Share(MemoryBudget& budget) : budget_(&budget) {}
        Share(Share&& other) noexcept
            : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
        Share& operator=(Share&&) = delete;
        ~Share() { budget_->held_bytes_ -= bytes_; }

        [[nodiscard]] std::size_t bytes() const { return bytes_; }
        // Returns false and changes nothing where all together would be more than the budget. Less
        // is always granted.
        [[nodiscard]] bool resize(std::size_t bytes) {
            const std::size_t others = budget_->held_bytes_ - bytes_;
            if (bytes > bytes_ && (bytes > budget_->bytes_max_ - others)) return false;
            budget_->held_bytes_ = others + bytes;
            bytes_ = bytes;
            return true;
        }

      private:
        MemoryBudget* budget_;
        std::size_t bytes_ = 0;
    };

  private:
    std::size_t bytes_max_;
    std::size_t held_bytes_ = 0;  // at most bytes_max_
};

}  // namespace pitstop::http
