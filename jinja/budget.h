// What a rendering may cost, and what it has cost so far.
//
// A template comes with a model, a chat from anybody: neither may take a process's memory or hold
// its thread. Everything that is built is counted when it is built, also if it is dropped again, so
// what is alive is never more.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::jinja {

struct Limits {
    std::int64_t steps_max = 10'000'000;                 // expressions, comparisons, loop turns
    std::size_t built_bytes_max = std::size_t{1} << 30;  // of all texts and lists ever built
    std::size_t output_bytes_max = std::size_t{64} << 20;
    int depth_max = 400;  // of nested expressions, statements and calls; of nested values
};

class Budget {
  public:
    explicit Budget(const Limits& limits) : limits_(limits) {}

    [[nodiscard]] const Limits& limits() const { return limits_; }

    Result<> steps(std::int64_t count = 1) {
        num_steps_ += count;
        if (num_steps_ <= limits_.steps_max) [[likely]]
            return Ok{};
        return make_error(
            ErrorCode::kTooLarge, "the rendering takes more than {} steps", limits_.steps_max
        );
    }
    Result<> bytes(std::size_t count) {
        if (count <= limits_.built_bytes_max - built_bytes_) [[likely]] {
            built_bytes_ += count;
            return Ok{};
        }
        return make_error(
            ErrorCode::kTooLarge,
            "the rendering builds more than {} bytes of values",
            limits_.built_bytes_max
        );
    }

  private:
    Limits limits_;
    std::int64_t num_steps_ = 0;
    std::size_t built_bytes_ = 0;
};

// A text being built, piece by piece, within the budget.
class TextBuilder {
  public:
    explicit TextBuilder(Budget& budget) : budget_(budget) {}

    // False once the budget is spent; nothing is added from then on.
    bool add(std::string_view piece) {
        if (!failure_) return false;
        failure_ = budget_.bytes(piece.size() + 1);
        if (failure_) text_.append(piece);
        return failure_.has_value();
    }
    [[nodiscard]] bool is_full() const { return !failure_; }
    [[nodiscard]] Result<std::string> take() {
        if (!failure_) return failure_.error();
        return std::move(text_);
    }
    [[nodiscard]] Budget& budget() { return budget_; }

  private:
    Budget& budget_;
    std::string text_{};
    Result<> failure_ = Ok{};
};

}  // namespace pitstop::jinja
