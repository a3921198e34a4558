// Decode attention waits for the kernel before it: rope, which writes the keys and values of the
// rows' own tokens (kernels/device/dependent_launch.cuh).
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "kernels/runtime/device_graph.h"
#include "tests/kernels/cuda_support.h"

#include <numeric>
#include <vector>

namespace pitstop::kernels::test {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int32_t kPageSize = 16;
constexpr std::int32_t kPages = 9;  // per row
constexpr std::int64_t kQueryHeads = 4;
// The rows' own tokens are in each quarter of a tile of 64, first or last in a tile, and alone.
constexpr std::int32_t kLens[kRows] = {1, 20, 64, 65, 107, 144};

template <class X>
PlacedArray<X> series(std::int64_t num, std::int64_t step, const Place& place) {
    std::vector<X> numbers;
    for (std::int64_t i = 0; i < num; ++i) numbers.push_back(static_cast<X>(i * step));
    return PlacedArray<X>{numbers, place};
}

PlacedArray<std::int64_t> own_slots(const Place& place) {
    std::vector<std::int64_t> slots;
    for (std::int64_t r = 0; r < kRows; ++r) slots.push_back(r * kPages * kPageSize + kLens[r] - 1);
    return PlacedArray<std::int64_t>{slots, place};
}

// A step's rope and attention in one layer, for rows that decode.
class RopeThenAttention {
  public:
    RopeThenAttention(std::int32_t head_dim, const Place& place)
        : width_(kQueryHeads * head_dim),
          kv_{.num_pages = kPages * static_cast<std::int32_t>(kRows),
              .page_size = kPageSize,
              .num_kv_heads = 1,
              .head_dim = head_dim},
          kv_before_(random_matrix<bf16>(1, kv_bytes(kv_) / std::int64_t{sizeof(bf16)}, 7), place),
          kv_room_(kv_bytes(kv_), place),
          q_(random_matrix<bf16>(kRows, width_, 3), place),
          own_(random_matrix<bf16>(kRows, head_dim, 4), place),
          angles_(random_matrix<float>(1, head_dim / 2, 2), place),
          slots_(own_slots(place)),
          positions_(series<std::int32_t>(kRows, 0, place)),
          q_starts_(series<std::int32_t>(kRows + 1, 1, place)),
          kv_lens_(std::vector<std::int32_t>{std::begin(kLens), std::end(kLens)}, place),
          page_starts_(series<std::int32_t>(kRows, kPages, place)),
          pages_(series<PageId>(kRows * kPages, 1, place)),
          arrivals_(series<std::uint32_t>(AttentionArgs::kArrivals, 0, place)),
          scratch_(
              attention_cuda_workspace_bytes(
                  {.num_tokens = kRows,
                   .num_q_heads = kQueryHeads,
                   .head_dim = head_dim,
                   .kv_len_max = kPages * kPageSize}
              ),
              place
          ),
          rotated_(kRows * width_ * 2, place),
          out_(kRows * width_ * 2, place),
          stream_(place.stream) {
        kv_.data = kv_room_.data();
    }

    void rope() const {
        rope_cuda(
            {.q = q_.view(),
             .k = own_.view(),
             .v = own_.view(),
             .q_out = view2(static_cast<bf16*>(rotated_.data()), kRows, width_),
             .kv = kv_,
             .slots = slots_.data(),
             .positions = positions_.data(),
             .cos = angles_.view(),
             .sin = angles_.view(),
             .stream = stream_}
        );
    }

    void attend() const {
        attention_cuda(
            {.q = view2(static_cast<bf16*>(rotated_.data()), kRows, width_),
             .out = view2(static_cast<bf16*>(out_.data()), kRows, width_),
             .kv = kv_,
             .num_q_heads = kQueryHeads,
             .num_rows = kRows,
             .q_starts = q_starts_.data(),
             .kv_lens = kv_lens_.data(),
             .pages = pages_.data(),
             .page_starts = page_starts_.data(),
             .kv_len_max = kPages * kPageSize,
             .q_len_max = 1,
             .scale = 0.125f,
             .workspace = scratch_.workspace(),
             .arrivals = arrivals_.data(),
             .stream = stream_}
        );
    }

    // Runs `enqueue`, in which the rows' own tokens are new. Returns the bytes of attention's
    // output.
    template <class Enqueue>
    [[nodiscard]] std::vector<std::byte> bytes_after(const Enqueue& enqueue) const {
        copy_on_device(kv_room_.data(), kv_before_.view().data, kv_room_.bytes(), stream_);
        fill_device(rotated_.data(), 0xff, rotated_.bytes(), stream_);
        fill_device(out_.data(), 0xff, out_.bytes(), stream_);
        enqueue();
        std::vector<std::byte> bytes(static_cast<std::size_t>(out_.bytes()));
        copy_to_host(bytes.data(), out_.data(), out_.bytes(), stream_);
        out_.wait();
        return bytes;
    }

    void wait() const { out_.wait(); }

  private:
    std::int64_t width_;
    KvCache kv_;
    PlacedMatrix<bf16> kv_before_;
    Room kv_room_;
    PlacedMatrix<bf16> q_, own_;
    PlacedMatrix<float> angles_;
    PlacedArray<std::int64_t> slots_;
    PlacedArray<std::int32_t> positions_;
    PlacedArray<std::int32_t> q_starts_;
    PlacedArray<std::int32_t> kv_lens_;
    PlacedArray<std::int32_t> page_starts_;
    PlacedArray<PageId> pages_;
    PlacedArray<std::uint32_t> arrivals_;
    Scratch scratch_;
    Room rotated_, out_;
    Stream stream_;
};

class CudaDependentLaunchOfAttention : public OnCuda {};

TEST_F(CudaDependentLaunchOfAttention, SeesItsOwnTokens) {
    if (compute_capability() < 90) GTEST_SKIP() << "no kernel begins early on this GPU";
    for (const std::int32_t head_dim : {64, 128}) {
        SCOPED_TRACE(testing::Message() << "D " << head_dim);
        const RopeThenAttention step(head_dim, place());
        const std::vector<std::byte> expected = step.bytes_after([&] {
            step.rope();
            step.wait();
            step.attend();
        });
        DeviceGraph::begin_capture(stream());
        step.rope();
        step.attend();
        const Result<DeviceGraph> graph = DeviceGraph::end_capture(stream());
        ASSERT_TRUE(graph.has_value()) << graph.error().message;
        constexpr int kLaunches = 40;
        for (int i = 0; i < kLaunches; ++i) {
            ASSERT_EQ(step.bytes_after([&] { graph->launch(stream()); }), expected)
                << "launch " << i;
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
