#include "tp_worker/ranks/communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace pitstop::tp_worker {
namespace {

class SoloCommunicator final : public Communicator {
  public:
    [[nodiscard]] Rank rank() const override { return Rank{0}; }
    [[nodiscard]] int size() const override { return 1; }
    Result<> all_reduce_sum(std::span<float>) override { return Ok{}; }
    Result<> gather_columns(View2<const float> part, View2<float> whole) override {
        CHECK(part.rows == whole.rows && part.cols >= whole.cols);
        if (part.data == whole.data) return Ok{};
        for (std::int64_t i = 0; i < part.rows; ++i) {
            std::copy_n(row(part, i).begin(), whole.cols, row(whole, i).begin());
        }
        return Ok{};
    }
    Result<> broadcast(std::span<std::byte>) override { return Ok{}; }
    Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
        CHECK(mine.size() == all.size());
        std::ranges::copy(mine, all.begin());
        return Ok{};
    }
    Result<> barrier() override { return Ok{}; }
    Result<> barrier_within(Duration) override { return Ok{}; }
};

}  // namespace

void paste_columns(const ColumnPiece& piece, View2<float> whole) {
    const std::int64_t first_col = piece.rank * piece.cols;
    const std::int64_t num_cols = std::min(piece.cols, whole.cols - first_col);
    for (std::int64_t at = piece.begin; at < piece.end;) {
        const std::int64_t i = at / piece.cols;
        const std::int64_t col = at % piece.cols;
        const std::int64_t num = std::min(piece.cols - col, piece.end - at);
        const std::int64_t num_kept = std::min(num, num_cols - col);
        if (num_kept > 0) {
            std::memcpy(
                whole.data + i * whole.stride + first_col + col,
                piece.data + (at - piece.begin),
                static_cast<std::size_t>(num_kept) * sizeof(float)
            );
        }
        at += num;
    }
}

Result<std::optional<Rank>> find_rank_without(bool holds, Communicator& communicator) {
    const std::array<bool, 1> mine{holds};
    std::vector<std::byte> all(static_cast<std::size_t>(communicator.size()));
    RETURN_IF_ERROR(communicator.all_gather(std::as_bytes(std::span(mine)), all));
    const auto found = std::ranges::find(all, std::byte{0});
    if (found == all.end()) return std::optional<Rank>{};
    return std::optional(static_cast<Rank>(found - all.begin()));
}

std::unique_ptr<Communicator> make_solo_communicator() {
    return std::make_unique<SoloCommunicator>();
}

}  // namespace pitstop::tp_worker
