// Puts packs whose weights have strides (slot.h) in the order of their weights when these are read.
// Only the copies of the packs that were read last stay in memory: a pack that is read again later
// is put in order again.
//
// Thread:  any; several threads may read weights of one pack.
// Bounded: OrderedPacks::kKeptMax copies, and one more for each thread that reads.
#pragma once

#include "base/mutex.h"
#include "tp_worker/weights/slot.h"
#include "tp_worker/weights/tensor_bytes.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

using OrderedBytes = std::shared_ptr<const std::vector<std::byte>>;

// The copies of the packs that were put in order last.
class OrderedPacks {
  public:
    // Readers take the weights by their names, so they go to and fro between the packs of a layer.
    static constexpr std::size_t kKeptMax = 4;

    void keep(OrderedBytes bytes);
    [[nodiscard]] std::size_t num_bytes();  // of all copies

  private:
    Mutex mutex_{};
    std::deque<OrderedBytes> kept_ GUARDED_BY(mutex_){};
};

class OrderedPack {
  public:
    struct Matrix {
        Strides strides{};
        std::int64_t rows = 0;
        std::int64_t cols = 0;
    };
    OrderedPack(
        TensorBytes pack,
        std::int64_t pack_bytes,
        std::int64_t element_bytes,
        std::shared_ptr<OrderedPacks> kept
    );

    // Returns the place of the matrix. All matrices are added before the first read().
    std::int64_t add(const Matrix& matrix);
    // Errors: kResourceExhausted if the memory for a copy cannot be had; those of the pack's bytes.
    Result<> read(std::int64_t begin, std::span<std::byte> out);

  private:
    Result<OrderedBytes> in_order() const;
    Result<OrderedBytes> copied() const;
    std::byte* copy(const Matrix& matrix, const std::byte* from, std::byte* to) const;

    TensorBytes pack_;
    std::int64_t pack_bytes_;
    std::int64_t element_bytes_;
    std::shared_ptr<OrderedPacks> kept_;
    std::int64_t bytes_ = 0;
    std::vector<Matrix> matrices_{};
    Mutex mutex_{};
    std::weak_ptr<const std::vector<std::byte>> ordered_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
