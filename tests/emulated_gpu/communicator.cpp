#include "tests/emulated_gpu/communicator.h"

#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

namespace pitstop::emulator {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 2ms;  // interval of looks at the other processes
constexpr auto kPause = 100us;    // between the polls of a call that blocks
// The polls that a non-blocking call may need. Any number is legal; a few suffice to find bugs.
constexpr std::size_t kPollsMax = 3;

struct Said {
    std::mutex mutex{};
    std::string text{};
};
Said& said() {
    static Said* const instance = new Said;
    return *instance;
}

}  // namespace

ncclResult_t say(ncclResult_t result, const std::string& what) {
    const std::scoped_lock lock(said().mutex);
    said().text = what;
    return result;
}

const std::string& last_said() {
    thread_local std::string copy;
    const std::scoped_lock lock(said().mutex);
    copy = said().text;
    return copy;
}

Communicator::Communicator(int num_ranks, int rank, int gpu, bool is_blocking)
    : num_ranks_(num_ranks),
      rank_(rank),
      gpu_(gpu),
      is_blocking_(is_blocking),
      random_(settings().seed + static_cast<std::uint64_t>(rank)) {}

ncclResult_t Communicator::check_in(const ncclUniqueId& id) {
    clique_ = Clique::open(id);
    // Source: "Types", ncclRemoteError: "a remote process exiting prematurely".
    if (clique_ == nullptr)
        return error_ = say(ncclRemoteError, "the process that made the unique id is not there");
    if (!clique_->check_in(rank_, num_ranks_, uuid_of(gpu_)))
        return error_ =
                   say(ncclInvalidUsage,
                       "the rank is taken, or others count the ranks differently");
    return is_blocking_ ? ncclSuccess : ncclInProgress;
}

ncclResult_t Communicator::try_to_join() {
    if (!clique_->are_all_here(num_ranks_)) return ncclInProgress;
    // Source: "Creating a Communicator": the same device as different ranks is not supported.
    if (const int other = clique_->rank_beside(rank_, num_ranks_); other >= 0) {
        return say(
            ncclInvalidUsage,
            "Duplicate GPU detected : rank " + std::to_string(rank_) + " and rank " +
                std::to_string(other) + " both on CUDA device " + std::to_string(gpu_)
        );
    }
    for (int rank = 0; rank < num_ranks_; ++rank) {
        if (clique_->rank_beside(rank, num_ranks_) >= 0)
            return say(ncclRemoteError, "rank " + std::to_string(rank) + " has left");
    }
    const auto bytes = static_cast<std::size_t>(settings().nccl_bytes);
    if (bytes > 0) memory_ = create_own_memory(gpu_, bytes, OwnMemory::kNccl);
    if (bytes > 0 && memory_ == nullptr)
        return say(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
    state_ = CommunicatorState::kReady;
    return ncclSuccess;
}

ncclResult_t Communicator::find_loss() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) return ncclSuccess;
    next_look_ = now + kLookEvery;
    if (!clique_->has_lost_one(num_ranks_)) return ncclSuccess;
    return say(ncclRemoteError, "the process of a rank has ended");
}

ncclResult_t Communicator::peek() {
    if (error_ != ncclSuccess) return error_;
    if (sticky_error() != 0) return ncclUnhandledCudaError;
    const bool is_under_way = state_ == CommunicatorState::kJoining ||
                              state_ == CommunicatorState::kFinalizing || !pending_.empty();
    return is_under_way ? ncclInProgress : ncclSuccess;
}

ncclResult_t Communicator::poll() {
    if (error_ == ncclSuccess && state_ == CommunicatorState::kJoining) {
        if (const ncclResult_t joined = try_to_join(); joined != ncclInProgress) error_ = joined;
    }
    if (!pending_.empty() && polls_left_-- == 0) launch();
    if (state_ == CommunicatorState::kFinalizing && is_done(last_)) {
        clique_->finalize(rank_);
        if (clique_->are_all_finalized(num_ranks_)) state_ = CommunicatorState::kFinalized;
    }
    if (error_ == ncclSuccess && state_ != CommunicatorState::kFinalized) error_ = find_loss();
    return peek();
}

ncclResult_t Communicator::wait() {
    while (true) {
        const ncclResult_t result = poll();
        if (result != ncclInProgress || is_aborted_) return result;
        std::this_thread::sleep_for(kPause);
    }
}

ncclResult_t Communicator::issue(std::vector<IssuedCollective> issued) {
    pending_ = std::move(issued);
    const bool is_at_once = is_blocking_ || settings().policy == Policy::kEarly;
    polls_left_ = is_at_once ? 0 : random_.below(kPollsMax);
    if (polls_left_ == 0) launch();
    return peek();
}

// Source: "Mixing Multiple Streams within the same ncclGroupStart/End() group": the first
// collective begins when all the streams have done their earlier work; they continue after the last
// one.
void Communicator::launch() {
    std::vector<std::shared_ptr<Stream>> streams;
    for (const IssuedCollective& issued : pending_) {
        if (std::find(streams.begin(), streams.end(), issued.stream) == streams.end())
            streams.push_back(issued.stream);
    }
    std::vector<Point> before;
    if (streams.size() > 1) {
        for (const auto& stream : streams) before.push_back(end_of(stream));
    }
    for (const IssuedCollective& issued : std::exchange(pending_, {})) {
        Work work = collective_work(shared_from_this(), issued);
        work.after = before;
        // A communicator's collectives run in the order of their calls, whatever their streams.
        if (last_.stream != nullptr) work.after.push_back(last_);
        // A captured collective has no point: the edges of the graph order it.
        if (const Point point = enqueue(issued.stream, std::move(work)); point.stream != nullptr)
            last_ = point;
    }
    if (streams.size() < 2) return;
    for (const auto& stream : streams)
        enqueue(stream, {.kind = WorkKind::kMarker, .name = "NCCL", .after = {last_}});
}

void Communicator::begin_finalize() {
    if (state_ == CommunicatorState::kReady) state_ = CommunicatorState::kFinalizing;
}

void Communicator::abort() {
    is_aborted_ = true;
    pending_.clear();
    (void)wait_for({last_});
    memory_.reset();
}

}  // namespace pitstop::emulator
