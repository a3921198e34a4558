// Bounds the bytes that all requests of this process use for their bodies and for the prompts made
// from them. Each sample has a copy of its prompt until the copy is sent to the tree.
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

    // The bytes of one request. Destruction returns them to the budget, which must still exist.
    class Share {
      public:
        explicit Share(MemoryBudget& budget) : budget_(&budget) {}
        Share(Share&& other) noexcept
            : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
        Share& operator=(Share&&) = delete;
        ~Share() { budget_->held_bytes_ -= bytes_; }

        [[nodiscard]] std::size_t bytes() const { return bytes_; }
        // Changes nothing and returns false if the total would exceed the budget. Shrinking always
        // succeeds.
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
