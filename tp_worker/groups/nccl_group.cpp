#include "tp_worker/groups/nccl_group.h"

#include "base/log.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "pickle/reader.h"
#include "tp_worker/groups/tcp_store.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kPickledIdBytesMax = 4096;
constexpr std::string_view kCountKey = "init/";  // the only key without a leading slash
constexpr std::string_view kVllmKey = "/broadcast_from/0/0";
constexpr int kTrainer = 0;                        // the trainer's rank
constexpr std::int64_t kLandingGranule = 2 << 20;  // room rounded up for slightly larger broadcasts
// The thread blocks of a broadcast: enough for NVLink's rate. While the broadcast waits, they take
// little of the GPU from steps.
constexpr int kCtasMax = 8;
constexpr auto kNcclLook = std::chrono::microseconds(100);
// A trainer whose store has gone may still finish a broadcast: it need not keep the store as long
// as the group.
constexpr auto kStoreGoneMax = std::chrono::seconds(10);
constexpr auto kNcclFarewellMax = std::chrono::seconds(2);

// The key of the group's first communicator, as PrefixStore(G), PrefixStore(G/) and
// PrefixStore(cuda/) nest it.
std::string sglang_key(const std::string& group) {
    return fmt::format("/{}/{}//cuda//0", group, group);
}

Error needs_gpu(std::string_view id_from) {
    return make_error(
        ErrorCode::kUnsupported,
        "the caller sent an NCCL unique id ({}), but this worker computes on the CPU and has no "
        "NCCL; use backend host",
        id_from
    );
}

Result<std::string> id_of_pickle(const std::string& value) {
    ASSIGN_OR_RETURN(
        const pickle::Document document,
        pickle::read(std::as_bytes(std::span(value)), pickle::Channel::kNcclId)
    );
    const pickle::Node& root = document.root();
    if (root.kind != pickle::Kind::kRecord || root.global != pickle::Global::kNcclUniqueId)
        return make_error(ErrorCode::kMalformed, "the store's value is not a pickled ncclUniqueId");
    return document.child(root, 0).text;
}

class NcclGroup : public BroadcastGroup {
  public:
    NcclGroup(
        messages::GroupSpec spec, std::int64_t rank, std::optional<TcpStore> store, NcclTurn& turn
    )
        : spec_(std::move(spec)), rank_(rank), store_(std::move(store)), turn_(turn) {}

    enum class WarmUp : std::uint8_t { kNone, kOneFloat };
    // Joins at once: `id` exists already.
    Result<> join(const std::string& id, WarmUp warm_up, const Patience& patience) {
        ASSIGN_OR_RETURN(const NcclTurn::Held turn, turn_.take(spec_.group, patience));
        const Patience bounded = turn_.within_bound(patience);
        Result<> joined = connect(id, bounded);
        if (joined && warm_up == WarmUp::kOneFloat) joined = sum_one_float(bounded);
        if (!joined) abort();
        return joined;
    }

    Result<> make_room(std::int64_t bytes_max) override {
        if (bytes_max > kLandingBytesMax) {
            return make_error(
                ErrorCode::kTooLarge,
                "a broadcast of {} bytes needs as much GPU memory; at most {} are accepted: send "
                "smaller buckets",
                bytes_max,
                kLandingBytesMax
            );
        }
        if (bytes_max <= landing_.bytes() || kernels::compute_capability() == 0) return Ok{};
        landing_ = {};  // freed first, as there may be room for only one
        const std::int64_t rounded =
            (bytes_max + kLandingGranule - 1) / kLandingGranule * kLandingGranule;
        Result<kernels::DeviceBuffer> made = kernels::DeviceBuffer::create(rounded);
        if (!made) {
            return make_error(
                made.error().code,
                "the GPU needs memory for the whole of the largest broadcast: {}",
                made.error().message
            );
        }
        landing_ = *std::move(made);
        return Ok{};
    }

    Result<Landed> receive(
        const Broadcast& broadcast, std::vector<std::byte>&, const Patience& patience
    ) override {
        const Use use(*this);
        if (!use.is_mine || is_ended_) {
            return make_error(
                ErrorCode::kFailedPrecondition,
                "group '{}' {}",
                printable(spec_.group),
                is_ended_ ? "has ended" : "is in use by another call"
            );
        }
        std::optional<NcclTurn::Held> turn;  // held until nothing is in flight
        Result<Landed> landed = receive_alone(broadcast, patience, turn);
        if (!landed) abort();
        return landed;
    }

    // NCCL cannot transmit a reason: the trainer's own deadline tells it.
    void refuse(const std::string&) override {
        const Use use(*this);
        if (use.is_mine) abort();
    }

    // Leaving ends the communicator. While a broadcast is being received, the receiver
    // ends the communicator instead.
    void leave() override {
        const Use use(*this);
        if (!use.is_mine || !comm_) return;
        spdlog::info(
            "group '{}': rank {} received {} broadcasts, {} bytes",
            printable(spec_.group),
            rank_,
            num_received_,
            num_bytes_
        );
        const std::atomic<bool> never{false};
        // If another group keeps the turn for longer, this group, which has nothing in flight,
        // leaves without it.
        const Result<NcclTurn::Held> turn =
            turn_.take(spec_.group, {Clock::now() + kNcclFarewellMax, never});
        const Patience patience{Clock::now() + kNcclFarewellMax, never};
        Result<> left = comm_->begin_finalize();
        if (left) left = wait("its end", patience, [this] { return comm_->is_ready(); });
        if (!left) return abort();
        comm_->destroy();
        comm_.reset();
        is_ended_ = true;
    }

    [[nodiscard]] bool is_over() override {
        const Use use(*this);
        if (!use.is_mine) return false;
        if (is_ended_ || (store_ && store_->is_closed())) return true;
        return comm_ && !comm_->is_ready();
    }

  private:
    // Admits one call at a time: a communicator belongs to one thread. Concurrent calls are
    // refused.
    struct Use {
        explicit Use(NcclGroup& group) : is_mine(!group.is_in_use_.exchange(true)), group_(group) {}
        ~Use() {
            if (is_mine) group_.is_in_use_ = false;
        }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        bool is_mine;

      private:
        NcclGroup& group_;
    };

    // Takes the turn once the id exists; the caller gives the turn back.
    Result<Landed> receive_alone(
        const Broadcast& broadcast, const Patience& patience, std::optional<NcclTurn::Held>& turn
    ) {
        RETURN_IF_ERROR(make_room(broadcast.bytes()));
        std::string id;
        if (!comm_) {
            ASSIGN_OR_RETURN(id, first_id(patience));
        }
        ASSIGN_OR_RETURN(NcclTurn::Held taken, turn_.take(spec_.group, patience));
        turn.emplace(std::move(taken));
        const Patience bounded = turn_.within_bound(patience);
        if (!comm_) RETURN_IF_ERROR(connect(id, bounded));
        Landed landed{.is_on_gpu = true, .owner = shared_from_this()};
        if (broadcast.num == 0) return landed;
        RETURN_IF_ERROR(comm_->broadcast(
            landing_.data(), broadcast.num, broadcast.type, kTrainer, stream_.stream()
        ));
        RETURN_IF_ERROR(wait_for_collective(
            fmt::format("broadcast {} ({} bytes)", num_received_ + 1, broadcast.bytes()), bounded
        ));
        ++num_received_;
        num_bytes_ += broadcast.bytes();
        landed.bytes = {
            static_cast<const std::byte*>(landing_.data()),
            static_cast<std::size_t>(broadcast.bytes())};
        return landed;
    }

    Result<std::string> first_id(const Patience& patience) {
        ASSIGN_OR_RETURN(
            std::string id,
            store_->wait_for_value(sglang_key(spec_.group), kernels::kNcclIdBytes, patience)
        );
        if (id.size() != kernels::kNcclIdBytes) {
            return make_error(
                ErrorCode::kMalformed,
                "the group's unique id has {} bytes; NCCL's has {}",
                id.size(),
                kernels::kNcclIdBytes
            );
        }
        if (kernels::compute_capability() == 0) return needs_gpu("torch's store");
        return id;
    }

    // REQUIRES: this group has the turn.
    Result<> connect(const std::string& id, const Patience& patience) {
        ASSIGN_OR_RETURN(
            stream_, kernels::DeviceStream::create(kernels::StreamPriority::kBackground)
        );
        ASSIGN_OR_RETURN(is_done_, kernels::DeviceEvent::create());
        ASSIGN_OR_RETURN(
            kernels::NcclCommunicator comm,
            kernels::NcclCommunicator::begin(
                {.id = id,
                 .num_ranks = static_cast<int>(spec_.world_size),
                 .rank = static_cast<int>(rank_),
                 .max_ctas = kCtasMax}
            )
        );
        comm_.emplace(std::move(comm));
        RETURN_IF_ERROR(wait("the other ranks", patience, [this] { return comm_->is_ready(); }));
        spdlog::info("group '{}': rank {} of {} over NCCL", spec_.group, rank_, spec_.world_size);
        return Ok{};
    }

    Result<> sum_one_float(const Patience& patience) {
        RETURN_IF_ERROR(make_room(sizeof(float)));
        kernels::fill_device(landing_.data(), 0, sizeof(float), stream_.stream());
        auto* const one = static_cast<float*>(landing_.data());
        RETURN_IF_ERROR(comm_->all_reduce_sum(one, 1, stream_.stream()));
        return wait_for_collective("the first all-reduce", patience);
    }

    // Returns when the collective is done on the GPU.
    Result<> wait_for_collective(std::string_view what, const Patience& patience) {
        bool is_enqueued = false;
        return wait(what, patience, [&]() -> Result<bool> {
            if (is_enqueued && is_done_.is_done()) return true;
            ASSIGN_OR_RETURN(const bool is_ready, comm_->is_ready());
            if (is_ready && !std::exchange(is_enqueued, true)) is_done_.record(stream_.stream());
            return false;
        });
    }

    template <class IsDone>
    Result<> wait(std::string_view what, const Patience& patience, IsDone is_done) {
        TimePoint deadline = patience.deadline;
        bool is_store_gone = false;
        while (true) {
            ASSIGN_OR_RETURN(const bool is_over, is_done());
            if (is_over) return Ok{};
            if (patience.is_called_off.load(std::memory_order_relaxed)) {
                return make_error(
                    ErrorCode::kAborted,
                    "group '{}': cancelled while waiting for {}",
                    printable(spec_.group),
                    what
                );
            }
            if (Clock::now() >= deadline) return error_of_late(what, is_store_gone);
            if (!is_store_gone && store_ && store_->is_closed()) {
                is_store_gone = true;
                deadline = std::min<TimePoint>(deadline, Clock::now() + kStoreGoneMax);
            }
            std::this_thread::sleep_for(kNcclLook);
        }
    }

    [[nodiscard]] Error error_of_late(std::string_view what, bool is_store_gone) const {
        return make_error(
            is_store_gone ? ErrorCode::kUnavailable : ErrorCode::kDeadlineExceeded,
            "group '{}': rank {} of {} timed out waiting for {}: {}; NCCL is aborted",
            printable(spec_.group),
            rank_,
            spec_.world_size,
            what,
            is_store_gone ? "the trainer's store has gone"
                          : "a rank did not join, or joined with another tensor size or world_size"
        );
    }

    // Ends all work in flight. REQUIRES: this group has the turn, or no work is in flight.
    void abort() {
        is_ended_ = true;
        if (!comm_) return;
        comm_->abort();
        comm_.reset();
        // The communicator's kernels notice the abort and end soon, unless the GPU is lost.
        is_done_.record(stream_.stream());
        is_done_.wait(
            kernels::kDeviceWaitMax,
            "a broadcast that was aborted",
            kernels::DeviceEvent::Watch::kLoose
        );
    }

    messages::GroupSpec spec_;
    std::int64_t rank_;
    std::optional<TcpStore> store_;  // kept: its end shows the trainer's end
    NcclTurn& turn_;
    std::atomic<bool> is_in_use_{false};
    bool is_ended_ = false;
    std::int64_t num_received_ = 0;  // broadcasts
    std::int64_t num_bytes_ = 0;     // of the received broadcasts
    kernels::DeviceStream stream_{};
    kernels::DeviceEvent is_done_{};
    kernels::DeviceBuffer landing_{};
    // last, so that it is destroyed before the memory it writes to
    std::optional<kernels::NcclCommunicator> comm_{};
};

}  // namespace

Result<std::shared_ptr<BroadcastGroup>> join_nccl_group(
    const messages::GroupSpec& spec, std::int64_t rank, NcclTurn& turn, const Patience& patience
) {
    if (rank >= spec.world_size) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "this worker would be rank {} of a group of {}; world_size counts the trainer and "
            "every rank of every replica",
            rank,
            spec.world_size
        );
    }
    const bool is_vllm = spec.rendezvous == messages::Rendezvous::kVllm;
    const bool has_id =
        !spec.unique_id.values.empty() && spec.rendezvous != messages::Rendezvous::kSglang;
    std::string id(spec.unique_id.values.begin(), spec.unique_id.values.end());
    std::optional<TcpStore> store;
    if (!has_id) {
        const StoreVersion version =
            spec.store_version == 1 ? StoreVersion::kTorch1 : StoreVersion::kTorch2;
        ASSIGN_OR_RETURN(store, TcpStore::connect(spec.address, spec.port, version, patience));
        // The trainer's constructor returns when every rank has counted itself in, exactly once.
        RETURN_IF_ERROR(store->increase(kCountKey, 1, patience));
        if (is_vllm) {
            ASSIGN_OR_RETURN(
                const std::string value,
                store->wait_for_value(kVllmKey, kPickledIdBytesMax, patience)
            );
            ASSIGN_OR_RETURN(id, id_of_pickle(value));
        }
    }
    const bool joins_now = has_id || is_vllm;
    if (kernels::compute_capability() == 0) {
        if (joins_now) return needs_gpu(has_id ? "in the call" : "torch's store");
    } else {
        ASSIGN_OR_RETURN([[maybe_unused]] const auto nccl, kernels::load_nccl());
    }
    auto group = std::make_shared<NcclGroup>(spec, rank, std::move(store), turn);
    if (joins_now) {
        const auto warm_up = is_vllm ? NcclGroup::WarmUp::kOneFloat : NcclGroup::WarmUp::kNone;
        RETURN_IF_ERROR(group->join(id, warm_up, patience));
    }
    return std::shared_ptr<BroadcastGroup>(std::move(group));
}

}  // namespace pitstop::tp_worker
