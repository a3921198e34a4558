#include "tp_worker/ranks/shm_communicator.h"

#include "base/mapped_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/futex.h>
#include <new>
#include <optional>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr int kRanksMax = 64;
constexpr std::uint64_t kSegmentMagic = 0x70697473746f7001;  // "pitstop", layout 1
constexpr int kSpinIterations = 4000;  // of one `pause` each: 60 us in all, the skew of a small op
constexpr auto kAttachPoll = std::chrono::microseconds(200);

enum class Op : std::uint32_t { kAllReduce = 1, kGather, kBroadcast, kAllGather, kBarrier };

std::string_view name_of(Op op) {
    constexpr std::array<std::string_view, 6> kNames{
        "?", "all_reduce", "gather", "broadcast", "all_gather", "barrier"};
    const auto index = static_cast<std::size_t>(op);
    return kNames[index < kNames.size() ? index : 0];
}

// The operation of a rank, so that ranks out of step cause an error and not a wrong sum.
struct Tag {
    Op op{};
    std::uint32_t reserved = 0;
    std::int64_t bytes = 0;
    friend bool operator==(const Tag&, const Tag&) = default;
};

struct alignas(64) RankSlot {
    std::atomic<std::int32_t> pid{0};  // set once, when attached
    std::atomic<bool> has_left{false};
    std::atomic<std::uint32_t> num_arrived{0};  // chunks this rank has arrived at
    std::array<Tag, 2> tags{};                  // by the chunk's parity
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): each word its own cache line
struct Segment {
    std::atomic<std::uint64_t> magic{0};  // written last
    std::int32_t size = 0;
    alignas(64) std::atomic<std::uint32_t> num_arrived{0};  // shared by all ranks
    // chunks that all ranks have reached: the futex
    alignas(64) std::atomic<std::uint32_t> generation{0};
    std::array<RankSlot, kRanksMax> slots{};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::int64_t kHeaderBytes = (sizeof(Segment) + 4095) / 4096 * 4096;

std::int64_t segment_bytes(int size) {
    return kHeaderBytes + std::int64_t{2} * size * kShmChunkBytes;
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, int timeout_ms) {
    const timespec timeout{timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000L};
    ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

// A direct system call, because glibc 2.36 declares pidfd_open without extern "C".
int open_pid(std::int32_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

Error from_errno(std::string_view what) {
    return make_error(ErrorCode::kResourceExhausted, "{}: {}", what, std::strerror(errno));
}

class ShmCommunicator final : public Communicator {
  public:
    explicit ShmCommunicator(const ShmCommunicatorArgs& args)
        : args_(args),
          rank_(static_cast<std::size_t>(raw(args.rank))),
          size_(static_cast<std::size_t>(args.size)),
          spins_(std::thread::hardware_concurrency() >= size_ ? kSpinIterations : 0) {}

    ~ShmCommunicator() override {
        if (segment_ != nullptr) {
            segment_->slots[rank_].has_left = true;
            futex_wake_all(segment_->generation);
            ::munmap(segment_, static_cast<std::size_t>(segment_bytes(args_.size)));
        }
        for (const int fd : pidfds_) {
            if (fd >= 0) ::close(fd);
        }
        if (memfd_ >= 0) ::close(memfd_);
        if (rank_ == 0) ::unlink(args_.path.c_str());
    }

    Result<> attach();

    [[nodiscard]] Rank rank() const override { return args_.rank; }
    [[nodiscard]] int size() const override { return args_.size; }
    Result<> all_reduce_sum(std::span<float> data) override;
    Result<> gather_columns(View2<const float> part, View2<float> whole) override;
    Result<> broadcast(std::span<std::byte> data) override;
    Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
    Result<> barrier() override { return barrier_within(args_.peer_timeout); }
    Result<> barrier_within(Duration limit) override;

  private:
    Result<> make_segment();
    Result<> open_segment(TimePoint deadline);
    Result<bool> try_open_segment();
    Result<> map(int fd);
    Result<> wait_for_all(TimePoint deadline);

    // Arrives at the current chunk and returns when all ranks have; then their buffers may be read
    // until this rank's next call.
    Result<> exchange(Tag tag) { return exchange(tag, args_.peer_timeout); }
    Result<> exchange(Tag tag, Duration limit);
    Result<> check_tags(Tag tag);
    Result<> wait_for_generation(Op op, Duration limit);
    [[nodiscard]] std::optional<Error> find_dead_peer(Op op) const;
    [[nodiscard]] std::string missing_ranks() const;
    Error fail(Error error) {
        broken_ = error;
        return error;
    }

    // Returns rank `rank`'s buffer for the current chunk.
    [[nodiscard]] std::byte* buffer(std::size_t rank) const {
        const std::size_t index = (chunk_ & 1) * size_ + rank;
        return reinterpret_cast<std::byte*>(segment_) + kHeaderBytes +
               static_cast<std::int64_t>(index) * kShmChunkBytes;
    }
    [[nodiscard]] const float* floats(std::size_t rank) const {
        return reinterpret_cast<const float*>(buffer(rank));
    }

    ShmCommunicatorArgs args_;
    std::size_t rank_;
    std::size_t size_;
    int spins_;
    Segment* segment_ = nullptr;
    int memfd_ = -1;             // of rank 0, until all have attached
    std::vector<int> pidfds_{};  // [size]; -1: this process
    std::uint32_t chunk_ = 0;    // the chunk being written or read
    std::optional<Error> broken_{};
};

Result<> ShmCommunicator::attach() {
    const TimePoint deadline = Clock::now() + args_.attach_timeout;
    if (rank_ == 0) {
        RETURN_IF_ERROR(make_segment());
    } else {
        RETURN_IF_ERROR(open_segment(deadline));
    }
    segment_->slots[rank_].pid = ::getpid();
    RETURN_IF_ERROR(wait_for_all(deadline));
    for (std::size_t i = 0; i < size_; ++i) {
        const std::int32_t pid = segment_->slots[i].pid;
        if (pid == ::getpid()) {
            pidfds_.push_back(-1);
            continue;
        }
        const int fd = open_pid(pid);
        if (fd < 0) return make_error(ErrorCode::kUnavailable, "rank {} (pid {}) is gone", i, pid);
        pidfds_.push_back(fd);
    }
    if (rank_ == 0) {
        // The file stays until every rank has opened the memory: ranks find it through the file.
        ::unlink(args_.path.c_str());
        ::close(std::exchange(memfd_, -1));
    }
    return Ok{};
}

Result<> ShmCommunicator::make_segment() {
    memfd_ = ::memfd_create("pitstop_comm", MFD_CLOEXEC);
    if (memfd_ < 0) return from_errno("cannot make shared memory");
    if (::ftruncate(memfd_, segment_bytes(args_.size)) != 0) {
        return from_errno(
            fmt::format("cannot get {} bytes of shared memory", segment_bytes(args_.size))
        );
    }
    RETURN_IF_ERROR(map(memfd_));
    new (segment_) Segment{};
    segment_->size = args_.size;
    segment_->magic.store(kSegmentMagic, std::memory_order_release);

    // The file is written under another name first, so that no rank reads half of it.
    const std::string partial = args_.path + ".partial";
    const std::string text = fmt::format("/proc/{}/fd/{}", ::getpid(), memfd_);
    const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return from_errno(fmt::format("cannot write '{}'", partial));
    const ssize_t written = ::write(fd, text.data(), text.size());
    ::close(fd);
    if (written != static_cast<ssize_t>(text.size()) ||
        ::rename(partial.c_str(), args_.path.c_str()) != 0) {
        return from_errno(fmt::format("cannot write '{}'", args_.path));
    }
    return Ok{};
}

Result<> ShmCommunicator::map(int fd) {
    void* start = ::mmap(
        nullptr,
        static_cast<std::size_t>(segment_bytes(args_.size)),
        PROT_READ | PROT_WRITE,
        MAP_SHARED,
        fd,
        0
    );
    if (start == MAP_FAILED) return from_errno("cannot map shared memory");
    segment_ = static_cast<Segment*>(start);
    return Ok{};
}

// Returns false if the segment does not exist yet.
Result<bool> ShmCommunicator::try_open_segment() {
    constexpr std::size_t kTextMax = 64;
    const Result<std::string> where = MappedFile::read(args_.path, kTextMax);
    if (!where) return false;
    const int fd = ::open(where->c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;  // a file of an older tree, whose process has ended
    struct stat info {};
    const bool fits = ::fstat(fd, &info) == 0 && info.st_size == segment_bytes(args_.size);
    Result<> mapped = fits ? map(fd) : Result<>(Ok{});
    ::close(fd);
    RETURN_IF_ERROR(std::move(mapped));
    if (!fits || segment_->magic.load(std::memory_order_acquire) != kSegmentMagic ||
        segment_->size != args_.size) {
        return make_error(
            ErrorCode::kFailedPrecondition, "'{}' was not made for {} ranks", args_.path, args_.size
        );
    }
    return true;
}

Result<> ShmCommunicator::open_segment(TimePoint deadline) {
    while (true) {
        ASSIGN_OR_RETURN(const bool is_open, try_open_segment());
        if (is_open) return Ok{};
        if (Clock::now() > deadline) {
            return make_error(
                ErrorCode::kDeadlineExceeded, "rank 0 has not made its shared memory in time"
            );
        }
        std::this_thread::sleep_for(kAttachPoll);
    }
}

Result<> ShmCommunicator::wait_for_all(TimePoint deadline) {
    while (true) {
        std::vector<std::size_t> missing;
        for (std::size_t i = 0; i < size_; ++i) {
            if (segment_->slots[i].pid == 0) missing.push_back(i);
        }
        if (missing.empty()) return Ok{};
        if (Clock::now() > deadline) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "rank {} has not attached in time",
                fmt::join(missing, ", ")
            );
        }
        std::this_thread::sleep_for(kAttachPoll);
    }
}

std::string ShmCommunicator::missing_ranks() const {
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < size_; ++i) {
        if (segment_->slots[i].num_arrived.load() == chunk_ + 1) continue;
        missing.push_back(fmt::format("{} (pid {})", i, segment_->slots[i].pid.load()));
    }
    return fmt::format("{}", fmt::join(missing, ", "));
}

std::optional<Error> ShmCommunicator::find_dead_peer(Op op) const {
    for (std::size_t i = 0; i < size_; ++i) {
        const RankSlot& slot = segment_->slots[i];
        if (slot.num_arrived.load() == chunk_ + 1) continue;  // has done its part of this chunk
        bool is_gone = slot.has_left;
        if (pidfds_[i] >= 0) {
            pollfd item{.fd = pidfds_[i], .events = POLLIN, .revents = 0};
            is_gone = is_gone || ::poll(&item, 1, 0) > 0;
        }
        if (!is_gone) continue;
        return make_error(
            ErrorCode::kUnavailable, "{}: rank {} (pid {}) is gone", name_of(op), i, slot.pid.load()
        );
    }
    return std::nullopt;
}

Result<> ShmCommunicator::wait_for_generation(Op op, Duration limit) {
    const std::uint32_t target = chunk_ + 1;
    std::atomic<std::uint32_t>& generation = segment_->generation;
    for (int i = 0; i < spins_; ++i) {
        if (generation.load(std::memory_order_acquire) == target) return Ok{};
        __builtin_ia32_pause();
    }
    const TimePoint deadline = Clock::now() + limit;
    while (true) {
        // The value is chunk_ or the target: it cannot pass the target without this rank.
        const std::uint32_t seen = generation.load(std::memory_order_acquire);
        if (seen == target) return Ok{};
        futex_wait(generation, seen, kLivenessMs);
        if (generation.load(std::memory_order_acquire) == target) return Ok{};
        std::optional<Error> error = find_dead_peer(op);
        if (!error && Clock::now() > deadline) {
            error = make_error(
                ErrorCode::kDeadlineExceeded,
                "{}: rank {} has not arrived within {} ms",
                name_of(op),
                missing_ranks(),
                std::chrono::duration_cast<std::chrono::milliseconds>(limit).count()
            );
        }
        // A peer may have arrived at this chunk, continued and left meanwhile: then the
        // chunk is complete.
        if (error && generation.load(std::memory_order_acquire) != target) return *std::move(error);
    }
}

Result<> ShmCommunicator::check_tags(Tag tag) {
    for (std::size_t i = 0; i < size_; ++i) {
        const Tag& other = segment_->slots[i].tags[chunk_ & 1];
        if (other == tag) continue;
        return make_error(
            ErrorCode::kInternal,
            "ranks are out of step: {} of {} bytes here, {} of {} bytes on rank {}",
            name_of(tag.op),
            tag.bytes,
            name_of(other.op),
            other.bytes,
            i
        );
    }
    return Ok{};
}

Result<> ShmCommunicator::exchange(Tag tag, Duration limit) {
    if (broken_) return *broken_;
    RankSlot& slot = segment_->slots[rank_];
    slot.tags[chunk_ & 1] = tag;
    slot.num_arrived.store(chunk_ + 1, std::memory_order_release);
    const auto num_expected = static_cast<std::uint32_t>((chunk_ + 1) * size_);
    if (segment_->num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_expected) {
        segment_->generation.store(chunk_ + 1, std::memory_order_release);
        futex_wake_all(segment_->generation);
    } else if (Result<> waited = wait_for_generation(tag.op, limit); !waited) {
        return fail(waited.error());
    }
    if (Result<> checked = check_tags(tag); !checked) return fail(checked.error());
    return Ok{};
}

Result<> ShmCommunicator::all_reduce_sum(std::span<float> data) {
    constexpr std::size_t kChunkFloats = kShmChunkBytes / sizeof(float);
    constexpr std::size_t kLanes = 16;
    while (!data.empty()) {
        const std::span<float> piece = data.first(std::min(kChunkFloats, data.size()));
        std::memcpy(buffer(rank_), piece.data(), piece.size_bytes());
        RETURN_IF_ERROR(exchange({Op::kAllReduce, 0, static_cast<std::int64_t>(piece.size_bytes())})
        );
        std::size_t i = 0;
        for (; i + kLanes <= piece.size(); i += kLanes) {
            std::array<float, kLanes> sum{};
            std::memcpy(sum.data(), floats(0) + i, sizeof(sum));
            for (std::size_t r = 1; r < size_; ++r) {
                const float* other = floats(r) + i;
                for (std::size_t k = 0; k < kLanes; ++k) sum[k] += other[k];
            }
            std::memcpy(piece.data() + i, sum.data(), sizeof(sum));
        }
        for (; i < piece.size(); ++i) {
            float sum = floats(0)[i];
            for (std::size_t r = 1; r < size_; ++r) sum += floats(r)[i];
            piece[i] = sum;
        }
        ++chunk_;
        data = data.subspan(piece.size());
    }
    return Ok{};
}

Result<> ShmCommunicator::gather_columns(View2<const float> part, View2<float> whole) {
    CHECK(part.stride == part.cols);
    CHECK(rank_ != 0 || (whole.rows == part.rows && part.cols * args_.size >= whole.cols));
    constexpr std::int64_t kChunkFloats = kShmChunkBytes / std::int64_t{sizeof(float)};
    const std::int64_t num_floats = part.rows * part.cols;
    for (std::int64_t begin = 0; begin < num_floats; begin += kChunkFloats) {
        const std::int64_t end = std::min(begin + kChunkFloats, num_floats);
        const auto bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
        if (rank_ != 0) std::memcpy(buffer(rank_), part.data + begin, bytes);
        RETURN_IF_ERROR(exchange({Op::kGather, 0, static_cast<std::int64_t>(bytes)}));
        for (std::size_t r = 0; rank_ == 0 && r < size_; ++r) {
            const float* const src = r == 0 ? part.data + begin : floats(r);
            paste_columns(
                {.rank = static_cast<int>(r),
                 .cols = part.cols,
                 .begin = begin,
                 .end = end,
                 .data = src},
                whole
            );
        }
        ++chunk_;
    }
    return Ok{};
}

Result<> ShmCommunicator::broadcast(std::span<std::byte> data) {
    while (!data.empty()) {
        const std::size_t bytes = std::min<std::size_t>(kShmChunkBytes, data.size());
        if (rank_ == 0) std::memcpy(buffer(0), data.data(), bytes);
        RETURN_IF_ERROR(exchange({Op::kBroadcast, 0, static_cast<std::int64_t>(bytes)}));
        if (rank_ != 0) std::memcpy(data.data(), buffer(0), bytes);
        ++chunk_;
        data = data.subspan(bytes);
    }
    return Ok{};
}

Result<> ShmCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    CHECK(all.size() == mine.size() * size_);
    for (std::size_t begin = 0; begin < mine.size();) {
        const std::size_t bytes = std::min<std::size_t>(kShmChunkBytes, mine.size() - begin);
        std::memcpy(buffer(rank_), mine.data() + begin, bytes);
        RETURN_IF_ERROR(exchange({Op::kAllGather, 0, static_cast<std::int64_t>(bytes)}));
        for (std::size_t r = 0; r < size_; ++r)
            std::memcpy(all.data() + r * mine.size() + begin, buffer(r), bytes);
        ++chunk_;
        begin += bytes;
    }
    return Ok{};
}

Result<> ShmCommunicator::barrier_within(Duration limit) {
    RETURN_IF_ERROR(exchange({Op::kBarrier, 0, 0}, limit));
    ++chunk_;
    return Ok{};
}

}  // namespace

Result<std::unique_ptr<Communicator>> attach_shm_communicator(const ShmCommunicatorArgs& args) {
    CHECK(args.size >= 1 && args.size <= kRanksMax);
    CHECK(raw(args.rank) >= 0 && raw(args.rank) < args.size);
    auto communicator = std::make_unique<ShmCommunicator>(args);
    RETURN_IF_ERROR(communicator->attach());
    return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace pitstop::tp_worker
