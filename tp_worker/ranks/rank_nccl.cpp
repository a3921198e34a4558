#include "tp_worker/ranks/rank_nccl.h"

#include "base/log.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using std::chrono::seconds;

// limits a join or a trial; afterwards the ranks continue without NCCL
constexpr Duration kJointMax = seconds(30);
// The number of sums between two marks. At most twice as many are enqueued ahead of the GPU: the
// sums of eight layers, whose launches are a fraction of its queue's capacity (about a thousand).
constexpr std::int64_t kSumsPerMark = 8;
constexpr auto kSumLook = std::chrono::microseconds(50);
constexpr auto kSpinMax =
    std::chrono::microseconds(200);  // after this, the wait sleeps, for kSumLook at a time
// The ranks report on the host that they have arrived, within a step's limit divided by this.
constexpr int kNamingShare = 4;

constexpr const char* kTurnName = "the ranks' sums";

// Returns each rank's NCCL version; 0 if it has none.
Result<std::vector<std::int32_t>> versions_of_all(std::int32_t mine, Communicator& host) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(host.size()));
    RETURN_IF_ERROR(
        host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)))
    );
    return all;
}

// Returns why ranks with these versions cannot have a communicator; nothing if they can.
std::string find_mismatch(const std::vector<std::int32_t>& versions) {
    const auto text = [](std::int32_t version) {
        return kernels::NcclLibrary{.version = version}.version_text();
    };
    for (std::size_t rank = 0; rank < versions.size(); ++rank) {
        if (versions[rank] == 0) return fmt::format("rank {} has no NCCL", rank);
        if (versions[rank] == versions[0]) continue;
        return fmt::format(
            "rank {} has NCCL {}, rank 0 has {}", rank, text(versions[rank]), text(versions[0])
        );
    }
    return "";
}

// Rank 0's id; the last byte tells whether there is one.
using SharedId = std::array<char, kernels::kNcclIdBytes + 1>;

// Returns rank 0's id on every rank, or an empty one if rank 0 cannot make one.
Result<std::string> share_id(Communicator& bus, std::string& why_not) {
    SharedId shared{};
    if (raw(bus.rank()) == 0) {
        const Result<std::string> id = kernels::make_nccl_id();
        if (id) {
            shared.back() = 1;
            std::ranges::copy(*id, shared.begin());
        } else {
            why_not = id.error().message;
        }
    }
    RETURN_IF_ERROR(bus.broadcast(std::as_writable_bytes(std::span(shared))));
    if (shared.back() == 0) {
        if (why_not.empty()) why_not = "rank 0 could not make a unique id for NCCL";
        return std::string();
    }
    return std::string(shared.data(), kernels::kNcclIdBytes);
}

}  // namespace

Result<RankNccl::Connected> RankNccl::connect(const Args& args) {
    const Result<kernels::NcclLibrary> library = kernels::load_nccl();
    ASSIGN_OR_RETURN(
        const std::vector<std::int32_t> versions,
        versions_of_all(library ? library->version : 0, args.host)
    );
    Connected connected;
    connected.why_not = find_mismatch(versions);
    if (!connected.why_not.empty()) return connected;
    ASSIGN_OR_RETURN(const std::string id, share_id(args.bus, connected.why_not));
    if (id.empty()) return connected;
    auto nccl = std::make_unique<RankNccl>(args);
    nccl->version_ = library->version_text();
    const Result<> joined = nccl->join(id);
    ASSIGN_OR_RETURN(
        const std::optional<Rank> without, find_rank_without(joined.has_value(), args.host)
    );
    if (!without) {
        connected.nccl = std::move(nccl);
    } else if (joined) {
        connected.why_not = fmt::format("rank {} could not join", raw(*without));
    } else {
        connected.why_not = joined.error().message;
    }
    return connected;
}

Result<> RankNccl::join(const std::string& id) {
    ASSIGN_OR_RETURN(is_done_, kernels::DeviceEvent::create());
    for (kernels::DeviceEvent& mark : marks_) {
        ASSIGN_OR_RETURN(mark, kernels::DeviceEvent::create());
    }
    ASSIGN_OR_RETURN(
        kernels::NcclCommunicator comm,
        kernels::NcclCommunicator::begin(
            {.id = id, .num_ranks = args_.host.size(), .rank = raw(args_.host.rank())}
        )
    );
    comm_.emplace(std::move(comm));
    const Duration limit = joint_limit();
    return wait("the other ranks to join", limit, [this] { return comm_->is_ready(); });
}

Duration RankNccl::joint_limit() const { return std::min<Duration>(kJointMax, args_.limit / 2); }

// All sums of a trial share one limit.
Duration RankNccl::sums_limit() const {
    if (use_ == Use::kStep) return args_.limit;
    return std::max<Duration>(Duration{}, trial_end_ - Clock::now());
}

Result<> RankNccl::wait(
    std::string_view what, Duration limit, const std::function<Result<bool>()>& is_done
) {
    const TimePoint begin = Clock::now();
    while (true) {
        ASSIGN_OR_RETURN(const bool is_over, is_done());
        if (is_over) return Ok{};
        const Duration waited = Clock::now() - begin;
        if (waited > limit) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "NCCL {}: {} took more than {} ms; it is aborted",
                version_,
                what,
                std::chrono::duration_cast<std::chrono::milliseconds>(limit).count()
            );
        }
        if (waited > kSpinMax) std::this_thread::sleep_for(kSumLook);
    }
}

Result<> RankNccl::wait_for(const kernels::DeviceEvent& event) {
    return wait("a step's sums", sums_limit(), [&]() -> Result<bool> {
        if (event.is_done()) return true;
        ASSIGN_OR_RETURN([[maybe_unused]] const bool is_ready, comm_->is_ready());
        return false;
    });
}

// NCCL reports a missing rank, but not always which one, so the remaining ranks find its number.
Error RankNccl::fail_sums(Error error) {
    comm_->abort();
    comm_.reset();
    if (use_ == Use::kTrial) {
        // Waits, because later work uses the stream: NCCL's kernels notice the abort and end soon,
        // unless the GPU is lost.
        is_done_.record(args_.stream);
        is_done_.wait(
            kernels::kDeviceWaitMax, "sums that were aborted", kernels::DeviceEvent::Watch::kLoose
        );
        return error;
    }
    const Result<> met = args_.host.barrier_within(args_.limit / kNamingShare);
    if (met) return error;
    // After a failure of this rank alone, the other ranks still wait in NCCL, and no
    // rank is missing.
    const bool is_late = error.code == ErrorCode::kDeadlineExceeded;
    if (!is_late && met.error().code == ErrorCode::kDeadlineExceeded) return error;
    return make_error(met.error().code, "{} ({})", met.error().message, error.message);
}

Result<> RankNccl::begin_step() { return begin(Use::kStep); }

Result<> RankNccl::begin_trial() { return begin(Use::kTrial); }

Result<> RankNccl::begin(Use use) {
    CHECK(!held_);
    use_ = use;
    trial_end_ = Clock::now() + joint_limit();
    num_sums_in_step_ = 0;
    std::optional<NcclTurn::Held> held = args_.turn->try_take(kTurnName);
    ASSIGN_OR_RETURN(
        const std::optional<Rank> without, find_rank_without(held.has_value(), args_.host)
    );
    if (!without) held_.emplace(*std::move(held));
    return Ok{};
}

Result<> RankNccl::all_reduce_sum(std::span<float> data) {
    CHECK(is_in_use());
    if (data.empty()) return Ok{};
    return follow(
        comm_->all_reduce_sum(data.data(), static_cast<std::int64_t>(data.size()), args_.stream)
    );
}

Result<> RankNccl::all_gather(std::span<const std::byte> mine, std::byte* all) {
    CHECK(is_in_use());
    if (mine.empty()) return Ok{};
    const auto num_bytes = static_cast<std::int64_t>(mine.size());
    return follow(comm_->all_gather(mine.data(), all, num_bytes, args_.stream));
}

Result<> RankNccl::follow(Result<> enqueued) {
    // A nonblocking call may enqueue later, and later work on the stream must not overtake it.
    if (enqueued) {
        enqueued = wait("to enqueue a sum", sums_limit(), [this] { return comm_->is_ready(); });
    }
    if (!enqueued) return fail_sums(enqueued.error());
    ++num_sums_;
    if (++num_sums_in_step_ % kSumsPerMark != 0) return Ok{};
    const auto at = static_cast<std::size_t>(num_sums_in_step_ / kSumsPerMark % 2);
    marks_[at].record(args_.stream);
    // Waits for the previous mark. At a step's first sum, that mark belongs to an earlier step or
    // does not exist, and so is done.
    const Result<> passed = wait_for(marks_[1 - at]);
    return passed ? Result<>(Ok{}) : Result<>(fail_sums(passed.error()));
}

Result<> RankNccl::finish_step() {
    if (!held_) return Ok{};
    is_done_.record(args_.stream);
    if (const Result<> done = wait_for(is_done_); !done) return fail_sums(done.error());
    held_.reset();
    return Ok{};
}

}  // namespace pitstop::tp_worker
