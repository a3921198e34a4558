// Keeps small arrays on the device that the ops of a call read: a call uploads only the words that
// differ from the last call's. The device applies them (kernels/word_runs.h).
//
//   standing.begin_call();
//   const SampleRow* there = standing.place(std::span(rows), rows_max);
//   standing.update();  // the words to upload; none if nothing changed
//
// Each array has its own place, large enough for its largest size, so that no array moves when
// another grows or shrinks. The host keeps a copy of the device's contents. For a word that an op
// writes in each call, the host's copy has a reserved value: so the word is not uploaded, and no
// later value equals it.
//
// Thread: the stream's.
// Bounded: the memory, and the same number of words on the host.
#pragma once

#include "base/check.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace pitstop::tp_worker {

class StandingArrays {
  public:
    // For the CPU, where ops read the host's arrays.
    StandingArrays() = default;
    // `there` [num_bytes] is device memory, initially zeros.
    StandingArrays(std::byte* there, std::int64_t num_bytes);

    // Returns the bytes that an array occupies in that memory.
    [[nodiscard]] static constexpr std::int64_t bytes_of(std::int64_t num_bytes) {
        constexpr std::int64_t kAlignment = 16;
        return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    }

    // Every call places the same arrays, in the same order.
    void begin_call();
    // Returns where the ops read the array: its place on the device, the array itself on the CPU.
    // `num_max` is the same in each call. REQUIRES: T has no padding bytes.
    template <class T>
    [[nodiscard]] T* place(std::span<T> array, std::int64_t num_max) {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::int32_t) == 0);
        if (there_ == nullptr) return array.data();
        CHECK(static_cast<std::int64_t>(array.size()) <= num_max);
        const std::int64_t begin = used_;
        used_ += bytes_of(num_max * std::int64_t{sizeof(T)});
        compare(begin, array.data(), array.size_bytes());
        return reinterpret_cast<T*>(there_ + begin);
    }
    // Returns the words that differ from the device's contents after the last update
    // (word_runs.h). Borrowed until the next call. REQUIRES: each nonempty update is applied, in
    // the order made.
    [[nodiscard]] std::span<const std::int32_t> update();
    [[nodiscard]] std::int32_t* device_words() const {
        return reinterpret_cast<std::int32_t*>(there_);
    }

  private:
    void compare(std::int64_t begin, const void* array, std::size_t num_bytes);

    std::byte* there_ = nullptr;         // null: on the CPU
    std::int64_t used_ = 0;              // bytes used by this call
    std::vector<std::int32_t> words_{};  // the device's, after the last update
    // The update that this call makes:
    std::vector<std::int32_t> runs_{};
    std::vector<std::int32_t> values_{};
    std::vector<std::int32_t> update_{};
};

}  // namespace pitstop::tp_worker
