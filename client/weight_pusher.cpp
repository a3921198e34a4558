#include "client/weight_pusher.h"

#include "base/check.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "client/bucket_plan.h"
#include "client/bucket_ring.h"
#include "client/push_sockets.h"
#include "client/pushed_tensors.h"
#include "client/shared_buffer.h"
#include "messages/codec.h"
#include "messages/dtypes.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

// Only a moment passes between two calls of a push. If the pusher is killed there, its session
// blocks others for this long.
constexpr std::chrono::milliseconds kIdleMax(10'000);

constexpr std::int64_t kBucketsMax = 4;  // filled but not yet read, at a time

// The size of a bucket for workers on CPUs, which find the bucket in the cache.
constexpr std::int64_t kBucketBytes = std::int64_t{4} << 20;
// The size of a bucket for workers on GPUs. A bucket costs some 0.2 ms besides copying, which is
// small compared with the millisecond that the bus needs. Not measured.
constexpr std::int64_t kGpuBucketBytes = std::int64_t{32} << 20;

enum class Workers : std::uint8_t { kOnGpus, kOthers };

// One thread fills as fast as it copies memory, and the workers' threads need cores, too. Threads
// of a GPU's worker copy to the GPU and compute nothing.
int num_threads(const PushOptions& options, Workers workers) {
    if (options.num_threads > 0) return options.num_threads;
    const bool is_on_gpus = workers == Workers::kOnGpus;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(cores / (is_on_gpus ? 2 : 4), 1, is_on_gpus ? 16 : 4);
}

class Push {
  public:
    Push(Client& client, const PushOptions& options, std::span<const TensorToPush> tensors)
        : client_(client), options_(options), tensors_(tensors), pieces_(options, tensors) {
        report_.bytes = pieces_.bytes();
    }

    Result<PushReport> run() {
        const TimePoint begun = Clock::now();
        RETURN_IF_ERROR(pieces_.check());
        ASSIGN_OR_RETURN(const std::vector<std::string> devices, find_workers());
        ASSIGN_OR_RETURN(sockets_, PushSockets::bind(devices));
        RETURN_IF_ERROR(begin_session());
        Result<> pushed = push();
        if (!pushed) {
            // The tree drops the session when the bucket fails; say_end() covers failures that
            // happen only in this process.
            say_end(pushed.error());
            wait_for_bucket();
            static_cast<void>(
                client_.call(messages::DropStage{.session = session_}, options_.timeout)
            );
            // The tree's error names the rank and the problem.
            if (filled_ && !*filled_) return filled_->error();
            return pushed.error();
        }
        RETURN_IF_ERROR(commit());
        report_.total_s = seconds(Clock::now() - begun);
        return std::move(report_);
    }

  private:
    Result<std::vector<std::string>> find_workers() {
        ASSIGN_OR_RETURN(const messages::StatusReply status, client_.status(options_.timeout));
        std::vector<std::string> devices;
        for (const messages::ReplicaStatus& replica : status.replicas) {
            for (const messages::WorkerStatus& worker : replica.workers)
                devices.push_back(worker.device_uuid);
        }
        if (devices.empty())
            return make_error(ErrorCode::kUnavailable, "the tree has no worker to push to");
        const bool are_on_gpus = std::ranges::all_of(devices, [](const std::string& device) {
            return device.starts_with("GPU-");
        });
        if (are_on_gpus) workers_ = Workers::kOnGpus;
        const std::int64_t usual_bytes = are_on_gpus ? kGpuBucketBytes : kBucketBytes;
        bucket_bytes_ = in_bucket(options_.bucket_bytes > 0 ? options_.bucket_bytes : usual_bytes);
        for (const TensorToPush& tensor : tensors_)
            largest_ = std::max(largest_, in_bucket(tensor.bytes()));
        threads_.emplace(num_threads(options_, workers_));
        report_.num_workers = static_cast<std::int64_t>(devices.size());
        return devices;
    }

    Result<> begin_session() {
        messages::BeginUpdate begin;
        begin.idle_timeout_ms = kIdleMax.count();
        begin.holder = fmt::format("a push of process {}", ::getpid());
        begin.update.source.kind = messages::SourceKind::kBuckets;
        begin.update.label = options_.label;
        begin.update.kv_policy = options_.kv_policy;
        begin.update.partial = options_.partial;
        begin.update.allow_nonfinite = options_.allow_nonfinite;
        ASSIGN_OR_RETURN(const messages::UpdateReply begun, client_.call(begin, options_.timeout));
        RETURN_IF_ERROR(ok(begun));
        session_ = begun.session;
        messages::UpdateBucket bucket;
        bucket.session = session_;
        bucket.source.kind = messages::SourceKind::kIpc;
        bucket.source.handles = sockets_->handles();
        bucket.source.stall_ms = options_.stall.count();
        client_.call<messages::UpdateBucket>(
            bucket,
            [shared = shared_](Result<messages::UpdateReply> reply) {
                if (reply) {
                    if (Result<> is_ok = ok(*reply); !is_ok) reply = std::move(is_ok).error();
                }
                const MutexLock lock(shared->mutex);
                shared->filled = std::move(reply);
                shared->is_filled = true;
            },
            options_.timeout
        );
        return Ok{};
    }

    static Result<> ok(const messages::UpdateReply& reply) {
        if (reply.ok) return Ok{};
        return reply.verdict.error();
    }

    // Returns the tree's error if it has ended the bucket while workers still owe answers.
    std::optional<Error> is_over() {
        const MutexLock lock(shared_->mutex);
        if (!shared_->is_filled || *shared_->filled) return std::nullopt;
        return shared_->filled->error();
    }

    void wait_for_bucket() {
        constexpr auto kLookEvery = std::chrono::milliseconds(1);
        const TimePoint deadline = Clock::now() + options_.timeout;
        while (!shared_->is_filled && Clock::now() < deadline) {
            sockets_->flush();  // messages wait for a worker that has not connected yet
            std::this_thread::sleep_for(kLookEvery);
        }
        const MutexLock lock(shared_->mutex);
        if (shared_->is_filled) filled_ = shared_->filled;
    }

    void say_end(const Error& error) {
        messages::PushEnd end;
        end.verdict = error;
        sockets_->send_all(encode(end));
    }

    Result<> push() {
        const TimePoint begun = Clock::now();
        messages::PushOpen open;
        std::optional<SharedBuffer> buffer;
        if (!options_.adopt) {
            ASSIGN_OR_RETURN(
                buffer, SharedBuffer::make(buffer_bytes(), SharedBuffer::Access::kMapped)
            );
            open.memory = buffer->describe();
        }
        sockets_->send_all(encode(open));
        if (options_.adopt) {
            RETURN_IF_ERROR(receive_layouts());
            RETURN_IF_ERROR(push_shards());
        } else {
            RETURN_IF_ERROR(push_buckets(*buffer));
        }
        sockets_->send_all(encode(messages::PushEnd{}));
        RETURN_IF_ERROR(receive_done());
        report_.push_s = seconds(Clock::now() - begun);
        return Ok{};
    }

    // Fills the first buckets while the workers are still connecting.
    Result<> receive_layouts() {
        const TimePoint begun = Clock::now();
        ASSIGN_OR_RETURN(layouts_, sockets_->receive_layouts(options_.stall, [this] {
            return is_over();
        }));
        report_.wait_s += seconds(Clock::now() - begun);
        for (const messages::ShardTensor& tensor : layouts_.front().tensors)
            wanted_.insert(tensor.name);
        return Ok{};
    }

    Result<> receive_done() {
        if (layouts_.empty()) RETURN_IF_ERROR(receive_layouts());
        const TimePoint begun = Clock::now();
        Result<> done = sockets_->receive_done(options_.stall, [this] { return is_over(); });
        report_.wait_s += seconds(Clock::now() - begun);
        return done;
    }

    // Returns whether the tensor may be split by rows.
    [[nodiscard]] bool may_split(std::size_t tensor) const {
        return splits_ && pieces_.row_bytes_of(tensor) <= bucket_bytes_ &&
               wanted_.contains(pieces_.tree_name_of(tensor));
    }

    // Returns the size of the ring: for the buckets that may be in progress, or for two of the
    // largest tensor that may not be split. A small ring reuses its pages sooner, without page
    // faults.
    [[nodiscard]] std::int64_t ring_bytes() const {
        std::int64_t bucket = bucket_bytes_;
        for (std::size_t i = 0; i < tensors_.size(); ++i)
            if (!may_split(i)) bucket = std::max(bucket, in_bucket(tensors_[i].bytes()));
        return std::max(kBucketsMax * bucket_bytes_, 2 * bucket);
    }

    // Returns the bytes to share before a worker has told its layout: room for all tensors, none
    // split. Unused bytes take no memory.
    [[nodiscard]] std::int64_t buffer_bytes() const {
        std::int64_t all = 0;
        for (const TensorToPush& tensor : tensors_) all += in_bucket(tensor.bytes());
        return std::min(ring_bytes(), std::max(all, kBucketAlignBytes));
    }

    // Fills buckets as long as there is room, while every worker reads earlier ones: a worker that
    // has answered one finds the next in its queue.
    Result<> push_buckets(const SharedBuffer& buffer) {
        if (workers_ == Workers::kOnGpus && largest_ > bucket_bytes_) {
            RETURN_IF_ERROR(receive_layouts());
            splits_ = std::ranges::all_of(layouts_, &messages::PushLayout::takes_rows);
        }
        BucketRing ring(std::min(ring_bytes(), static_cast<std::int64_t>(buffer.bytes().size())));
        BucketPlan plan(pieces_, tensors_.size(), bucket_bytes_, [this](std::size_t tensor) {
            return may_split(tensor);
        });
        for (std::vector<Piece> content = plan.next(); !content.empty(); content = plan.next()) {
            ASSIGN_OR_RETURN(const std::int64_t base, take_room(ring, plan.bytes_of(content)));
            RETURN_IF_ERROR(push_bucket(content, buffer.bytes().data(), base));
        }
        for (; ring.num_taken() > 0; ring.release_oldest()) RETURN_IF_ERROR(receive_done());
        return Ok{};
    }

    Result<> push_bucket(const std::vector<Piece>& content, std::byte* buffer, std::int64_t base) {
        messages::PushBucket bucket{.bucket = report_.num_buckets};
        std::vector<Piece> pieces;
        std::vector<std::byte*> tensor_begins;  // of each piece
        for (const Piece& rows : content) {
            const TensorToPush& tensor = tensors_[rows.tensor];
            messages::PushTensor& pushed = bucket.tensors.emplace_back();
            pushed = {tensor.name, tensor.dtype, tensor.shape, base};
            if (rows.num_rows < pieces_.num_rows_of(rows.tensor)) {
                pushed.row_begin = rows.row_begin;
                pushed.num_rows = rows.num_rows;
            }
            pieces_.add_pieces(rows, pieces);
            std::byte* const begin = buffer + base - rows.row_begin * pieces_.row_bytes_of(rows);
            tensor_begins.resize(pieces.size(), begin);
            base += in_bucket(pieces_.bytes_of(rows));
        }
        const TimePoint begun = Clock::now();
        RETURN_IF_ERROR(threads_->run(pieces.size(), [&](std::size_t i) {
            return pieces_.fill(pieces[i], tensor_begins[i]);
        }));
        report_.fill_s += seconds(Clock::now() - begun);
        sockets_->send_all(encode(bucket));
        ++report_.num_buckets;
        return Ok{};
    }

    // Reserves room for a bucket. While the ring has none, waits until all workers have read the
    // oldest bucket, and frees it.
    Result<std::int64_t> take_room(BucketRing& ring, std::int64_t bytes) {
        while (true) {
            if (ring.num_taken() < kBucketsMax) {
                if (const auto base = ring.reserve(bytes)) return *base;
            }
            RETURN_IF_ERROR(receive_done());
            ring.release_oldest();
        }
    }

    // For each kind of worker: a tensor's name, and the parts of that tensor that it needs.
    using ShardTensors = std::vector<std::map<std::string_view, const messages::ShardTensor*>>;

    // Pushes every worker's whole shard. Each piece of a tensor is read once and written to every
    // place that needs it. Ranks of different replicas with equal shards share one copy.
    Result<> push_shards() {
        const std::vector<messages::PushLayout>& layouts = layouts_;
        std::vector<SharedBuffer> shards;
        std::vector<std::size_t> shard_of(layouts.size());
        std::vector<const messages::PushLayout*> kinds;
        for (std::size_t i = 0; i < layouts.size(); ++i) {
            if (layouts[i].shard_bytes == 0)
                return make_error(
                    ErrorCode::kUnsupported,
                    "worker {} cannot adopt a pusher's memory; push without adopt",
                    i
                );
            const auto same = std::ranges::find_if(kinds, [&](const messages::PushLayout* kind) {
                return kind->rank == layouts[i].rank;
            });
            shard_of[i] = static_cast<std::size_t>(same - kinds.begin());
            if (same != kinds.end()) continue;
            kinds.push_back(&layouts[i]);
            ASSIGN_OR_RETURN(
                SharedBuffer shard,
                SharedBuffer::make(layouts[i].shard_bytes, SharedBuffer::Access::kWritten)
            );
            shards.push_back(std::move(shard));
        }
        ASSIGN_OR_RETURN(const std::vector<Piece> pieces, pieces_of_shards());
        ShardTensors by_name(kinds.size());
        for (std::size_t k = 0; k < kinds.size(); ++k) {
            for (const messages::ShardTensor& tensor : kinds[k]->tensors)
                by_name[k][tensor.name] = &tensor;
        }
        const TimePoint begun = Clock::now();
        RETURN_IF_ERROR(threads_->run(pieces.size(), [&](std::size_t i) {
            return fill_shards(pieces[i], by_name, shards);
        }));
        for (SharedBuffer& shard : shards) RETURN_IF_ERROR(shard.seal());
        report_.fill_s += seconds(Clock::now() - begun);
        for (std::size_t i = 0; i < layouts.size(); ++i)
            sockets_->send(i, encode(messages::PushShard{shards[shard_of[i]].describe()}));
        report_.num_buckets = 1;
        return receive_done();
    }

    // Returns the pieces of all tensors that shards have.
    // Errors: kInvalidArgument if one is missing: workers would adopt zeros in its place.
    Result<std::vector<Piece>> pieces_of_shards() {
        std::vector<Piece> pieces;
        std::set<std::string_view> missing(wanted_.begin(), wanted_.end());
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (missing.erase(pieces_.tree_name_of(i)) != 0) pieces_.add_pieces(i, pieces);
        }
        if (missing.empty()) return pieces;
        return make_error(
            ErrorCode::kInvalidArgument,
            "the push lacks {} tensor(s) of the model, the first is '{}'; a push to be adopted "
            "contains each one, under its own name",
            missing.size(),
            *missing.begin()
        );
    }

    Result<> fill_shards(
        const Piece& piece, const ShardTensors& by_name, const std::vector<SharedBuffer>& shards
    ) {
        const TensorToPush& tensor = tensors_[piece.tensor];
        for (const auto& kind : by_name) {
            const auto wanted = kind.find(pieces_.tree_name_of(piece.tensor));
            if (wanted == kind.end() || wanted->second->shape != tensor.shape) {
                return make_error(
                    ErrorCode::kInvalidArgument, "'{}' has another shape in the model", tensor.name
                );
            }
            const std::string_view dtype = messages::dtype_or_usual(wanted->second->dtype);
            if (tensor.dtype == dtype) continue;
            return make_error(
                ErrorCode::kUnsupported,
                "'{}' has dtype {}; in a shard to be adopted it must be {}",
                tensor.name,
                tensor.dtype,
                dtype
            );
        }
        const RowBytes bytes{
            .row = pieces_.row_bytes_of(piece),
            .element = messages::element_bytes_of(tensor.dtype).value_or(0)};
        return pieces_.read(piece, [&](const std::byte* rows) -> Result<> {
            for (std::size_t k = 0; k < by_name.size(); ++k) {
                for (const messages::ShardPiece& to :
                     by_name[k].at(pieces_.tree_name_of(piece.tensor))->pieces)
                    RETURN_IF_ERROR(write_overlap(piece, rows, bytes, to, shards[k]));
            }
            return Ok{};
        });
    }

    // The bytes of a tensor's row, and of an element.
    struct RowBytes {
        std::int64_t row = 0;
        std::int64_t element = 0;
    };

    // Writes the piece's overlap with the shard's part `to`. `rows`: the piece's bytes.
    static Result<> write_overlap(
        const Piece& piece,
        const std::byte* rows,
        const RowBytes& bytes,
        const messages::ShardPiece& to,
        const SharedBuffer& shard
    ) {
        const std::int64_t begin = std::max(piece.row_begin, to.row_begin);
        const std::int64_t end =
            std::min(piece.row_begin + piece.num_rows, to.row_begin + to.num_rows);
        if (begin >= end) return Ok{};
        const std::int64_t row_bytes = bytes.row;
        const std::int64_t copy_bytes = to.num_cols * bytes.element;
        const std::byte* first =
            rows + (begin - piece.row_begin) * row_bytes + to.col_begin * bytes.element;
        const std::int64_t at = to.offset + (begin - to.row_begin) * to.row_stride;
        const auto size = static_cast<std::size_t>(copy_bytes);
        if (to.row_stride != copy_bytes) {  // the shard's row is longer than this part
            for (std::int64_t row = 0; row < end - begin; ++row)
                RETURN_IF_ERROR(
                    shard.write(at + row * to.row_stride, {first + row * row_bytes, size})
                );
            return Ok{};
        }
        const std::size_t all = static_cast<std::size_t>(end - begin) * size;
        if (copy_bytes == row_bytes) return shard.write(at, {first, all});
        thread_local std::vector<std::byte> cut;  // reused between pieces
        cut.resize(all);
        for (std::int64_t row = 0; row < end - begin; ++row)
            std::memcpy(cut.data() + row * copy_bytes, first + row * row_bytes, size);
        return shard.write(at, cut);
    }

    Result<> commit() {
        wait_for_bucket();
        if (!filled_)
            return make_error(ErrorCode::kDeadlineExceeded, "the tree did not answer in time");
        if (!*filled_) return filled_->error();
        report_.filled = **filled_;
        if (!wanted_.empty()) {
            report_.digest = pieces_.version_digest([this](std::string_view name) {
                return wanted_.contains(name);
            });
        }
        messages::CommitWeights commit;
        commit.session = session_;
        commit.digest = report_.digest;
        ASSIGN_OR_RETURN(report_.reply, client_.call(commit, options_.timeout));
        return ok(report_.reply);
    }

    // Shared with the callback, which may come after a push was abandoned.
    struct Shared {
        Mutex mutex{};
        std::atomic<bool> is_filled{false};
        std::optional<Result<messages::UpdateReply>> filled GUARDED_BY(mutex){};
    };

    Client& client_;
    const PushOptions& options_;
    std::span<const TensorToPush> tensors_;
    Workers workers_ = Workers::kOthers;
    std::int64_t bucket_bytes_ = 0;
    std::int64_t largest_ = 0;  // bytes of a tensor in a bucket
    bool splits_ = false;       // tensors larger than a bucket may be split by rows
    std::optional<TaskPool> threads_{};
    PushedTensors pieces_;
    std::optional<PushSockets> sockets_{};
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
    std::optional<Result<messages::UpdateReply>> filled_{};
    std::vector<messages::PushLayout> layouts_{};  // by worker; empty until it has answered
    std::uint64_t session_ = 0;
    std::set<std::string, std::less<>>
        wanted_{};  // the model's tensors; empty if workers did not report them
    PushReport report_{};
};

}  // namespace

Result<PushReport> WeightPusher::push(std::span<const TensorToPush> tensors) {
    return Push(client_, options_, tensors).run();
}

}  // namespace pitstop
