// Bounds the cost of a rendering, and counts it.
//
// Models, requests and any client may supply templates and chats: neither may exhaust the process's
// memory or block its thread. Everything built, read or compared is charged before the work is
// done. What was built stays charged after it is dropped, so live memory never exceeds the charge.
#pragma once

#include "base/interrupt.h"
#include "base/result.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::jinja {

struct Limits {
    // Steps measure a rendering's time independently of the machine. An expression, a comparison
    // and a turn of a loop are one step each, and so are Budget::kBytesPerStep bytes. A chat of
    // 4,000 messages fits (LongChatsRenderWithinTheDefaults).
    std::int64_t steps_max = 2'000'000;
    // Counts all texts and lists ever built. A template copies the longest chat that a door
    // accepts, 16 MiB, about six times.
    std::size_t built_bytes_max = std::size_t{128} << 20;
    std::size_t output_bytes_max = std::size_t{32} << 20;
    int depth_max = 400;  // levels of expressions, statements and calls, and of nested values
    Interrupt interrupt{};
};

class Budget {
  public:
    // Copying this many bytes takes about as long as one step.
    static constexpr std::uint64_t kBytesPerStep = 256;
    // Bytes whose code points are looked up one by one in Unicode tables cost this many times as
    // much.
    static constexpr std::size_t kBytesPerLookUp = 8;

    explicit Budget(const Limits& limits)
        : limits_(limits),
          work_max_(static_cast<std::uint64_t>(std::max<std::int64_t>(limits.steps_max, 0))) {
        work_max_ = times(work_max_, kBytesPerStep);
    }

    [[nodiscard]] const Limits& limits() const { return limits_; }

    Result<> steps(std::size_t count = 1) { return work(times(count, kBytesPerStep)); }
    // Charges for bytes before they are read.
    Result<> scan(std::size_t count) { return work(count); }
    // Charges for the bytes of code points before they are looked up.
    Result<> look_up(std::size_t count) { return work(times(count, kBytesPerLookUp)); }
    // Charges for bytes before they are built.
    Result<> bytes(std::size_t count) {
        if (count > limits_.built_bytes_max - built_bytes_) {
            return make_error(
                ErrorCode::kTooLarge,
                "the rendering builds more than {} bytes of values",
                limits_.built_bytes_max
            );
        }
        built_bytes_ += count;
        return work(count + kPieceWork);
    }
    // Charges for `count` items of `each` bytes.
    Result<> items(std::size_t count, std::size_t each) { return bytes(times(count, each)); }

  private:
    static constexpr std::uint64_t kPieceWork = 32;  // cost of any piece, however short
    static constexpr std::uint64_t kWorkPerLook = 512 * kBytesPerStep;

    // Returns the product, or the largest value of the type.
    static std::uint64_t times(std::uint64_t a, std::uint64_t b) {
        std::uint64_t product = 0;
        if (__builtin_mul_overflow(a, b, &product))
            return std::numeric_limits<std::uint64_t>::max();
        return product;
    }
    Result<> work(std::uint64_t amount) {
        if (amount > work_max_ - work_) {
            work_ = work_max_;
            return make_error(
                ErrorCode::kTooLarge, "the rendering takes more than {} steps", limits_.steps_max
            );
        }
        work_ += amount;
        if (work_ < next_look_) [[likely]]
            return Ok{};
        next_look_ = work_ + kWorkPerLook;
        if (limits_.interrupt) {
            if (std::optional<Error> why = limits_.interrupt()) return *std::move(why);
        }
        return Ok{};
    }

    Limits limits_;
    std::uint64_t work_max_;  // in bytes: steps * kBytesPerStep
    std::uint64_t work_ = 0;
    std::uint64_t next_look_ = kWorkPerLook;
    std::size_t built_bytes_ = 0;
};

// Builds a text, piece by piece, within the budget.
class TextBuilder {
  public:
    explicit TextBuilder(Budget& budget) : budget_(budget) {}

    // Returns false once the budget is spent; nothing is added after that.
    bool add(std::string_view piece) {
        if (!failure_) return false;
        failure_ = budget_.bytes(piece.size() + 1);
        if (failure_) text_.append(piece);
        return failure_.has_value();
    }
    // Charges for the bytes of code points before they are looked up for the text.
    bool look_up(std::size_t count) {
        if (failure_) failure_ = budget_.look_up(count);
        return failure_.has_value();
    }
    // Adds the piece `times` times.
    bool add(std::string_view piece, std::size_t times) {
        if (!failure_) return false;
        failure_ = budget_.items(times, piece.size());
        if (!failure_) return false;
        if (piece.size() == 1) {
            text_.append(times, piece.front());
        } else {
            for (std::size_t i = 0; i < times; ++i) text_.append(piece);
        }
        return true;
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
