// A collective's work in a stream: a kernel that waits for the other ranks' pieces. If they do not
// arrive, only an abort of the communicator ends it. Source: NCCL documentation, "Collective
// Operations", "Data Pointers", "In-place Operations".
#include "tests/emulated_gpu/bf16.h"
#include "tests/emulated_gpu/communicator.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

namespace pitstop::emulator {
namespace {

constexpr int kIllegalAddress = 700;  // cudaErrorIllegalAddress
constexpr auto kPause = std::chrono::microseconds(50);

template <class T>
T combine(ncclRedOp_t op, T a, T b) {
    switch (op) {
        case ncclProd:
            return static_cast<T>(a * b);
        case ncclMax:
            return std::max(a, b);
        case ncclMin:
            return std::min(a, b);
        case ncclSum:
        case ncclAvg:
            return static_cast<T>(a + b);
    }
    return a;
}

// Each addition is rounded to the type, as between the ranks of a ring.
template <class T>
void reduce_values(
    const std::vector<const std::byte*>& pieces, std::byte* to, std::size_t num, ncclRedOp_t op
) {
    for (std::size_t i = 0; i < num; ++i) {
        T sum;
        std::memcpy(&sum, pieces[0] + i * sizeof(T), sizeof(T));
        for (std::size_t p = 1; p < pieces.size(); ++p) {
            T value;
            std::memcpy(&value, pieces[p] + i * sizeof(T), sizeof(T));
            sum = combine(op, sum, value);
        }
        if (op == ncclAvg) sum = static_cast<T>(sum / static_cast<T>(pieces.size()));
        std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
    }
}

void reduce_bf16(
    const std::vector<const std::byte*>& pieces, std::byte* to, std::size_t num, ncclRedOp_t op
) {
    const auto at = [](const std::byte* piece, std::size_t i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, piece + 2 * i, sizeof bits);
        return widen(bits);
    };
    for (std::size_t i = 0; i < num; ++i) {
        float sum = at(pieces[0], i);
        for (std::size_t p = 1; p < pieces.size(); ++p)
            sum = widen(narrow(combine(op, sum, at(pieces[p], i))));
        if (op == ncclAvg) sum /= static_cast<float>(pieces.size());
        const std::uint16_t bits = narrow(sum);
        std::memcpy(to + 2 * i, &bits, sizeof bits);
    }
}

void reduce(
    const Collective& collective,
    const std::vector<const std::byte*>& pieces,
    std::byte* to,
    std::size_t num
) {
    switch (collective.type) {
        case ncclInt8:
            return reduce_values<std::int8_t>(pieces, to, num, collective.op);
        case ncclUint8:
            return reduce_values<std::uint8_t>(pieces, to, num, collective.op);
        case ncclInt32:
            return reduce_values<std::int32_t>(pieces, to, num, collective.op);
        case ncclUint32:
            return reduce_values<std::uint32_t>(pieces, to, num, collective.op);
        case ncclInt64:
            return reduce_values<std::int64_t>(pieces, to, num, collective.op);
        case ncclUint64:
            return reduce_values<std::uint64_t>(pieces, to, num, collective.op);
        case ncclFloat32:
            return reduce_values<float>(pieces, to, num, collective.op);
        case ncclFloat64:
            return reduce_values<double>(pieces, to, num, collective.op);
        case ncclBfloat16:
            return reduce_bf16(pieces, to, num, collective.op);
        case ncclFloat16:
            return;  // refused at the call
    }
}

// Returns whether a kernel on the GPU may use the pointer.
bool is_on_gpu(const void* pointer) { return find_memory(pointer).has_value(); }

class CollectiveRun {
  public:
    CollectiveRun(std::shared_ptr<Communicator> communicator, const IssuedCollective& issued)
        : communicator_(std::move(communicator)),
          clique_(communicator_->clique()),
          collective_(issued.collective),
          from_(static_cast<const std::byte*>(issued.from)),
          to_(static_cast<std::byte*>(issued.to)),
          bytes_(collective_.num * element_bytes(collective_.type)),
          num_ranks_(communicator_->num_ranks()),
          rank_(communicator_->rank()) {}

    // Returns whether the collective has ended.
    bool step() {
        if (communicator_->is_aborted()) {
            poison_rest();
            return true;
        }
        if (!has_looked_ && !may_use_memory()) return true;
        if (advance()) return done_ == bytes_ && phase_ == Phase::kPut;
        let_other_works_run();  // a piece has not arrived yet
        std::this_thread::sleep_for(kPause);
        return false;
    }

  private:
    enum class Phase : std::uint8_t { kPut, kRead, kLinger };

    [[nodiscard]] bool is_broadcast() const {
        return collective_.kind == CollectiveKind::kBroadcast;
    }
    [[nodiscard]] bool is_root() const { return is_broadcast() && collective_.root == rank_; }
    [[nodiscard]] bool gives() const { return !is_broadcast() || is_root(); }
    [[nodiscard]] std::size_t piece_bytes() const {
        return std::min<std::size_t>(Clique::kPieceBytes, bytes_ - done_);
    }

    bool may_use_memory() {
        has_looked_ = true;
        if ((!gives() || is_on_gpu(from_)) && is_on_gpu(to_)) return true;
        std::fprintf(stderr, "emulated GPU: NCCL accesses memory that is not the GPU's\n");
        end_context(kIllegalAddress);
        return false;
    }

    // False: the phase has to wait.
    bool advance() {
        switch (phase_) {
            case Phase::kPut:
                return put();
            case Phase::kRead:
                return read();
            case Phase::kLinger:
                return linger();
        }
        return false;
    }

    bool put() {
        turn_ = communicator_->turn;
        for (int rank = 0; rank < num_ranks_; ++rank) {
            if (turn_ > 0 && !clique_.has_read(rank, turn_ - 1)) return false;
        }
        if (gives()) std::memcpy(clique_.area(rank_), from_ + done_, piece_bytes());
        clique_.put(rank_, turn_, collective_);
        phase_ = Phase::kRead;
        return true;
    }

    // The root of a broadcast waits for no rank: by the source above, it may be done before the
    // others have begun.
    [[nodiscard]] bool needs(int rank) const {
        return !is_broadcast() || (!is_root() && rank == collective_.root);
    }

    bool read() {
        for (int rank = 0; rank < num_ranks_; ++rank) {
            if (!needs(rank)) continue;
            if (!clique_.has_put(rank, turn_)) return false;
            if (!is_as_mine(rank)) return false;
        }
        const std::size_t bytes = piece_bytes();
        if (is_broadcast()) {
            const std::byte* const piece =
                is_root() ? from_ + done_ : clique_.area(collective_.root);
            std::memmove(to_ + done_, piece, bytes);
        } else if (collective_.kind == CollectiveKind::kAllGather) {
            for (int rank = 0; rank < num_ranks_; ++rank) {
                std::memcpy(
                    to_ + static_cast<std::size_t>(rank) * bytes_ + done_, clique_.area(rank), bytes
                );
            }
        } else {
            reduce_piece(bytes);
        }
        clique_.read(rank_, turn_);
        ++communicator_->turn;
        done_ += bytes;
        phase_ = is_root() && settings().policy != Policy::kEarly ? Phase::kLinger : Phase::kPut;
        return true;
    }

    // The sum begins after the piece's owner, as in a ring: the first rank differs by piece.
    void reduce_piece(std::size_t bytes) {
        std::vector<const std::byte*> pieces;
        const auto first = static_cast<int>(done_ / Clique::kPieceBytes);
        for (int i = 0; i < num_ranks_; ++i)
            pieces.push_back(clique_.area((first + i) % num_ranks_));
        reduce(collective_, pieces, to_ + done_, bytes / element_bytes(collective_.type));
    }

    // A broadcast's root may also end late: here it waits until all ranks have read.
    bool linger() {
        for (int rank = 0; rank < num_ranks_; ++rank) {
            if (clique_.has_put(rank, turn_) && !clique_.has_read(rank, turn_) && !is_as_mine(rank))
                return false;
            if (!clique_.has_read(rank, turn_)) return false;
        }
        phase_ = Phase::kPut;
        return true;
    }

    bool is_as_mine(int rank) {
        if (clique_.collective_of(rank) == collective_) return true;
        if (!has_complained_) {
            std::fprintf(
                stderr,
                "emulated GPU: NCCL: ranks %d and %d are at different collectives, and wait\n",
                rank_,
                rank
            );
        }
        has_complained_ = true;
        return false;
    }

    // The result of an aborted collective is unusable.
    void poison_rest() {
        const std::size_t num = collective_.kind == CollectiveKind::kAllGather
                                    ? static_cast<std::size_t>(num_ranks_)
                                    : 1;
        for (std::size_t i = 0; i < num; ++i)
            std::memset(to_ + i * bytes_ + done_, kPoison, bytes_ - done_);
    }

    std::shared_ptr<Communicator> communicator_;
    Clique& clique_;
    Collective collective_;
    const std::byte* from_;
    std::byte* to_;
    std::size_t bytes_;  // per rank
    int num_ranks_;
    int rank_;
    std::size_t done_ = 0;
    std::uint64_t turn_ = 0;
    Phase phase_ = Phase::kPut;
    bool has_looked_ = false;
    bool has_complained_ = false;
};

}  // namespace

std::size_t element_bytes(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64:
            return 8;
    }
    return 0;
}

Work collective_work(std::shared_ptr<Communicator> communicator, const IssuedCollective& issued) {
    return {
        .kind = WorkKind::kKernel,
        .name = "a collective",
        .begin = [communicator = std::move(communicator), issued]() -> Step {
            auto run = std::make_shared<CollectiveRun>(communicator, issued);
            return [run] { return run->step(); };
        }};
}

}  // namespace pitstop::emulator
