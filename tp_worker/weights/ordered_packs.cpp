#include "tp_worker/weights/ordered_packs.h"

#include "base/cut_guard.h"

#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace pitstop::tp_worker {

void OrderedPacks::keep(OrderedBytes bytes) {
    const MutexLock lock(mutex_);
    kept_.push_back(std::move(bytes));
    if (kept_.size() > kKeptMax) kept_.pop_front();
}

std::size_t OrderedPacks::num_bytes() {
    const MutexLock lock(mutex_);
    std::size_t num = 0;
    for (const OrderedBytes& bytes : kept_) num += bytes->size();
    return num;
}

OrderedPack::OrderedPack(
    TensorBytes pack,
    std::int64_t pack_bytes,
    std::int64_t element_bytes,
    std::shared_ptr<OrderedPacks> kept
)
    : pack_(std::move(pack)),
      pack_bytes_(pack_bytes),
      element_bytes_(element_bytes),
      kept_(std::move(kept)) {}

std::int64_t OrderedPack::add(const Matrix& matrix) {
    const std::int64_t begin = bytes_;
    matrices_.push_back(matrix);
    bytes_ += matrix.rows * matrix.cols * element_bytes_;
    return begin;
}

Result<> OrderedPack::read(std::int64_t begin, std::span<std::byte> out) {
    OrderedBytes ordered;
    {
        const MutexLock lock(mutex_);
        ordered = ordered_.lock();
        if (ordered == nullptr) {
            ASSIGN_OR_RETURN(ordered, in_order());
            ordered_ = ordered;
            kept_->keep(ordered);
        }
    }
    std::memcpy(out.data(), ordered->data() + begin, out.size());
    return Ok{};
}

Result<OrderedBytes> OrderedPack::in_order() const {
    try {
        return copied();
    } catch (const std::bad_alloc&) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "no memory for a copy of a packed tensor of {} bytes; free memory, or send each "
            "expert's matrix",
            pack_bytes_
        );
    }
}

Result<OrderedBytes> OrderedPack::copied() const {
    std::vector<std::byte> read;
    const std::byte* from = pack_.data;
    if (from == nullptr) {
        read.resize(static_cast<std::size_t>(pack_bytes_));
        RETURN_IF_ERROR(pack_.read(0, read));
        from = read.data();
    }
    const auto extent = static_cast<std::size_t>(pack_bytes_);
    const std::optional<CutGuard> guard =
        pack_.is_whole ? std::optional<CutGuard>(std::in_place, std::span(from, extent))
                       : std::nullopt;
    auto ordered = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes_));
    std::byte* to = ordered->data();
    for (const Matrix& matrix : matrices_) to = copy(matrix, from, to);
    if (pack_.is_whole) RETURN_IF_ERROR(pack_.is_whole());
    if (guard && guard->is_cut())
        return make_error(ErrorCode::kDataLoss, "a tensor was truncated while it was read");
    return OrderedBytes(std::move(ordered));
}

std::byte* OrderedPack::copy(const Matrix& matrix, const std::byte* from, std::byte* to) const {
    const auto element = static_cast<std::size_t>(element_bytes_);
    const Strides& strides = matrix.strides;
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
        for (std::int64_t col = 0; col < matrix.cols; ++col, to += element_bytes_) {
            const std::int64_t at = strides.begin + row * strides.per_row + col * strides.per_col;
            std::memcpy(to, from + at * element_bytes_, element);
        }
    }
    return to;
}

}  // namespace pitstop::tp_worker
