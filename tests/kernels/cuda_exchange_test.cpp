// The ranks' exchanges, with every rank on a stream of one GPU: all blocks run at once, like those
// of several GPUs.
#include "base/digest.h"
#include "kernels/exchange.h"
#include "tests/kernels/cuda_support.h"

#include <cstdint>
#include <new>
#include <vector>

namespace pitstop::kernels {
namespace {

// CUDA does not promise that kernels of several streams run together, as those of several GPUs do.
// If they do not, each test says so before its time is over. The GPU in software always runs them
// together, slowly.
#if defined(PITSTOP_EMULATED)
constexpr std::uint64_t kPatienceNs = 60'000'000'000;
#else
constexpr std::uint64_t kPatienceNs = 5'000'000'000;
#endif

// In [-1000, 1000), all bits of the mantissa in use: the order of a sum shows.
float value_of(int rank, std::int64_t i) {
    const std::uint64_t index = static_cast<std::uint64_t>(i) * 64 + static_cast<unsigned>(rank);
    return static_cast<float>(mix64(index) >> 40) * (2000.f / 0x1p24f) - 1000.f;
}

// One rank: its memory, its stream, and data that it exchanges.
struct Side {
    DeviceStream stream{};
    DeviceBuffer memory{};
    PinnedBuffer failure{};
    DeviceBuffer data{};
    Exchange exchange{};

    float* floats() const { return static_cast<float*>(data.data()); }
    const ExchangeFailure& said() const {
        return *reinterpret_cast<const ExchangeFailure*>(failure.data());
    }
};

template <class T>
T must(Result<T> result) {
    EXPECT_TRUE(result.has_value());
    return *std::move(result);
}

class CudaExchange : public test::OnCuda {
  protected:
    void make(
        int size,
        std::int64_t data_floats,
        std::int64_t chunk_bytes = 1 << 20,
        std::uint64_t limit_ns = kPatienceNs
    ) {
        sides_.clear();
        sides_.resize(static_cast<std::size_t>(size));
        for (Side& side : sides_) {
            side.stream = must(DeviceStream::create(StreamPriority::kStep));
            side.memory = must(DeviceBuffer::create(exchange_bytes(chunk_bytes)));
            side.failure = must(PinnedBuffer::create(sizeof(ExchangeFailure)));
            side.data = must(DeviceBuffer::create(4 * data_floats));
            new (side.failure.data()) ExchangeFailure{};
            fill_device(side.memory.data(), 0, exchange_header_bytes(), stream());
        }
        stream_.wait();
        for (int rank = 0; rank < size; ++rank) {
            Side& side = sides_[static_cast<std::size_t>(rank)];
            side.exchange = {
                .rank = rank,
                .size = size,
                .num_blocks = 4,
                .chunk_bytes = chunk_bytes,
                .limit_ns = limit_ns,
                .failure = reinterpret_cast<ExchangeFailure*>(side.failure.data())};
            for (std::size_t i = 0; i < sides_.size(); ++i)
                side.exchange.memories[i] = static_cast<std::byte*>(sides_[i].memory.data());
        }
    }

    void upload(const Side& side, const std::vector<float>& values) {
        copy_and_wait(side.floats(), values.data(), static_cast<std::int64_t>(values.size()) * 4);
    }
    std::vector<float> fetch(const Side& side, std::int64_t num) {
        std::vector<float> values(static_cast<std::size_t>(num));
        copy_to_host(values.data(), side.floats(), num * 4, side.stream.stream());
        side.stream.wait();
        EXPECT_EQ(side.said().kind, 0u);
        return values;
    }

    std::vector<Side> sides_{};
};

TEST_F(CudaExchange, SumsInRankOrderOnEveryRank) {
    constexpr std::int64_t kChunkFloats = (1 << 20) / 4;
    // Sizes: one pack; one pack more than a block has; the largest of one shot, the smallest of
    // two; more than a chunk.
    const std::int64_t one_shot = kOneShotBytesMax / 4;
    for (const int size : {2, 3, 4}) {
        for (const std::int64_t n :
             {std::int64_t{4}, std::int64_t{2052}, one_shot, one_shot + 4, kChunkFloats + 1028}) {
            SCOPED_TRACE(testing::Message() << size << " ranks, " << n << " floats");
            make(size, n + 4);  // four more, which must stay untouched
            std::vector<float> expected(static_cast<std::size_t>(n));
            for (int rank = 0; rank < size; ++rank) {
                std::vector<float> values(static_cast<std::size_t>(n + 4), -7.f);
                for (std::int64_t i = 0; i < n; ++i) {
                    const float value = value_of(rank, i);
                    values[static_cast<std::size_t>(i)] = value;
                    float& sum = expected[static_cast<std::size_t>(i)];
                    sum = rank == 0 ? value : sum + value;
                }
                upload(sides_[static_cast<std::size_t>(rank)], values);
            }
            expected.insert(expected.end(), 4, -7.f);
            for (const Side& side : sides_) {
                all_reduce_cuda(
                    {.exchange = side.exchange,
                     .data = side.floats(),
                     .num = n,
                     .stream = side.stream.stream()}
                );
            }
            for (const Side& side : sides_) EXPECT_EQ(fetch(side, n + 4), expected);
        }
    }
}

// A rank that is one launch ahead must not overwrite what others still read; sizes change on the
// way, and with them the number of blocks.
TEST_F(CudaExchange, ManyInARowDoNotMixUp) {
    constexpr int kSize = 3;
    constexpr std::int64_t kFloats = 4096;
    const int num = test::is_small() ? 40 : 2000;
    make(kSize, kFloats, /*chunk_bytes=*/4 * kFloats);
    std::vector<float> sums(kFloats);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i % 5);
    for (const Side& side : sides_) upload(side, sums);
    for (int k = 0; k < num; ++k) {
        const std::int64_t n = k % 3 == 0 ? 8 : kFloats;
        for (const Side& side : sides_) {
            all_reduce_cuda(
                {.exchange = side.exchange,
                 .data = side.floats(),
                 .num = n,
                 .stream = side.stream.stream()}
            );
        }
        for (std::int64_t i = 0; i < n; ++i) {
            float& sum = sums[static_cast<std::size_t>(i)];
            sum = sum + sum + sum;
        }
    }
    for (const Side& side : sides_) EXPECT_EQ(fetch(side, kFloats), sums);
}

// V is no multiple of the number of ranks: the last rank has less than a whole part, or nothing.
TEST_F(CudaExchange, GathersColumnsAsFarAsTheyGo) {
    constexpr int kSize = 4;
    constexpr std::int64_t kRows = 3;
    for (const std::int64_t V : {5, 8, 1001}) {
        const std::int64_t C = (V + kSize - 1) / kSize;
        make(kSize, kRows * C, /*chunk_bytes=*/1024);
        for (int rank = 0; rank < kSize; ++rank) {
            std::vector<float> part;
            for (std::int64_t i = 0; i < kRows * C; ++i)
                part.push_back(static_cast<float>(i / C * V + rank * C + i % C));
            upload(sides_[static_cast<std::size_t>(rank)], part);
        }
        const std::int64_t stride = V + 1;
        const DeviceBuffer whole = must(DeviceBuffer::create(kRows * stride * 4));
        std::vector<float> expected(static_cast<std::size_t>(kRows * stride), -2.f);
        copy_and_wait(whole.data(), expected.data(), whole.bytes());
        for (const Side& side : sides_) {
            View2<float> to{};
            if (side.exchange.rank == 0) to = {static_cast<float*>(whole.data()), kRows, V, stride};
            gather_columns_cuda(
                {.exchange = side.exchange,
                 .part = view2(static_cast<const float*>(side.floats()), kRows, C),
                 .whole = to,
                 .stream = side.stream.stream()}
            );
        }
        for (const Side& side : sides_) {
            side.stream.wait();
            EXPECT_EQ(side.said().kind, 0u);
        }
        for (std::int64_t i = 0; i < kRows * V; ++i)
            expected[static_cast<std::size_t>(i / V * stride + i % V)] = static_cast<float>(i);
        std::vector<float> gathered(expected.size());
        copy_and_wait(gathered.data(), whole.data(), whole.bytes());
        EXPECT_EQ(gathered, expected);
    }
}

// Sizes: one pack, a few, and more than a chunk. Two rounds, because launches alternate between two
// chunks.
TEST_F(CudaExchange, EveryRankHasTheRecordsOfAllInRankOrder) {
    for (const int size : {1, 2, 3, 4}) {
        for (const std::int64_t num_floats : {4, 60, 1024}) {
            SCOPED_TRACE(testing::Message() << size << " ranks, " << num_floats << " floats");
            make(size, num_floats * (size + 1), /*chunk_bytes=*/1024);
            for (int round = 0; round < 2; ++round) {
                std::vector<float> expected;
                for (int rank = 0; rank < size; ++rank) {
                    std::vector<float> mine;
                    for (std::int64_t i = 0; i < num_floats; ++i)
                        mine.push_back(value_of(rank + 8 * round, i));
                    expected.insert(expected.end(), mine.begin(), mine.end());
                    upload(sides_[static_cast<std::size_t>(rank)], mine);
                }
                for (const Side& side : sides_) {
                    auto* const data = static_cast<std::byte*>(side.data.data());
                    all_gather_cuda(
                        {.exchange = side.exchange,
                         .mine = data,
                         .all = data + 4 * num_floats,
                         .num_bytes = 4 * num_floats,
                         .stream = side.stream.stream()}
                    );
                }
                for (const Side& side : sides_) {
                    const std::vector<float> found = fetch(side, num_floats * (size + 1));
                    EXPECT_TRUE(
                        std::equal(expected.begin(), expected.end(), found.begin() + num_floats)
                    );
                }
            }
        }
    }
}

TEST_F(CudaExchange, P5_ARankThatDoesNotComeIsNamedAndLaterLaunchesEndAtOnce) {
    constexpr int kSize = 3;
    constexpr std::uint64_t kLimitNs = 200'000'000;
    make(kSize, 64, 1 << 20, kLimitNs);
    for (const Side& side : sides_) fill_device(side.data.data(), 0, 256, side.stream.stream());
    for (const std::size_t rank : {0u, 2u}) {
        const Side& side = sides_[rank];
        // If each call waited until the limit, 500 calls would take minutes.
        for (int k = 0; k < 500; ++k) {
            all_reduce_cuda(
                {.exchange = side.exchange,
                 .data = side.floats(),
                 .num = 64,
                 .stream = side.stream.stream()}
            );
        }
    }
    for (const std::size_t rank : {0u, 2u}) {
        const Side& side = sides_[rank];
        side.stream.wait();
        const Error error = error_of(side.said(), kLimitNs);
        EXPECT_EQ(error.code, ErrorCode::kDeadlineExceeded);
        EXPECT_EQ(error.message, "all_reduce of 64 floats: rank 1 has not arrived within 200 ms");
        EXPECT_EQ(side.said().launch, 1u);
    }
}

TEST_F(CudaExchange, RanksOutOfStepAreAnError) {
    make(2, 128);
    for (const Side& side : sides_) {
        fill_device(side.data.data(), 0, 512, side.stream.stream());
        all_reduce_cuda(
            {.exchange = side.exchange,
             .data = side.floats(),
             .num = side.exchange.rank == 0 ? 64 : 128,
             .stream = side.stream.stream()}
        );
    }
    for (const Side& side : sides_) side.stream.wait();
    const Error error = error_of(sides_[1].said(), kPatienceNs);
    EXPECT_EQ(error.code, ErrorCode::kInternal);
    EXPECT_EQ(
        error.message,
        "ranks are out of step: all_reduce of 128 floats here, all_reduce of 64 floats on rank 0"
    );
}

}  // namespace
}  // namespace pitstop::kernels
