#include "client/weight_pusher.h"

#include "base/check.h"
#include "base/cut_guard.h"
#include "base/isa.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "client/bucket_ring.h"
#include "client/push_sockets.h"
#include "client/shared_buffer.h"
#include "digest/digest_rows.h"
#include "messages/codec.h"
#include "messages/version_digest.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <utility>

namespace pitstop {
namespace {

// Between two calls of a push lies a moment's work. Where a pusher is killed there, the session it
// leaves keeps others out for so long.
constexpr std::chrono::milliseconds kIdleMax(10'000);

constexpr std::int64_t kElementBytes = 2;                    // of a resident weight
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;  // digested while in the cache
constexpr std::int64_t kAlignBytes = 64;                     // of a tensor in a bucket
constexpr std::int64_t kBucketsMax = 4;                      // under way: filled, not yet read

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::int64_t element_bytes(std::string_view dtype) { return dtype == "F32" ? 4 : 2; }

// The last dimension are columns, the others rows; one dimension is one row.
struct Matrix {
    std::int64_t rows = 1;
    std::int64_t cols = 1;
};
Matrix matrix_of(std::span<const std::int64_t> shape) {
    Matrix matrix;
    if (!shape.empty()) matrix.cols = shape.back();
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) matrix.rows *= shape[i];
    return matrix;
}

// One thread fills as fast as one copies memory, and the workers' threads want cores, too.
int num_threads(const PushOptions& options) {
    if (options.num_threads > 0) return options.num_threads;
    constexpr int kThreadsMax = 4;
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, kThreadsMax);
}

// Describes part of a tensor: whole rows, read and digested in one go.
struct Piece {
    std::size_t tensor = 0;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
};

class Push {
  public:
    Push(Client& client, const PushOptions& options, std::span<const TensorToPush> tensors)
        : client_(client),
          options_(options),
          tensors_(tensors),
          threads_(num_threads(options)),
          digests_(tensors.size()) {
        has_digest_ = options_.declare_digest && !options_.partial;
        for (const TensorToPush& tensor : tensors_) {
            report_.bytes += tensor.bytes();
            has_digest_ = has_digest_ && tensor.dtype == "BF16";
        }
    }

    Result<PushReport> run() {
        const TimePoint begun = Clock::now();
        RETURN_IF_ERROR(check());
        ASSIGN_OR_RETURN(const std::vector<std::string> devices, find_workers());
        ASSIGN_OR_RETURN(sockets_, PushSockets::bind(devices));
        RETURN_IF_ERROR(begin_session());
        Result<> pushed = push();
        if (!pushed) {
            // The tree drops the session when the bucket fails; this is for what failed here alone.
            say_end(pushed.error());
            wait_for_bucket();
            static_cast<void>(
                client_.call(messages::DropStage{.session = session_}, options_.timeout)
            );
            // What the tree says names the rank and the problem.
            if (filled_ && !*filled_) return filled_->error();
            return pushed.error();
        }
        RETURN_IF_ERROR(commit());
        report_.total_s = seconds(Clock::now() - begun);
        return std::move(report_);
    }

  private:
    Result<> check() const {
        std::set<std::string_view> names;
        for (const TensorToPush& tensor : tensors_) {
            if (!names.insert(tensor.name).second)
                return make_error(ErrorCode::kInvalidArgument, "'{}' is there twice", tensor.name);
            if (tensor.dtype != "BF16" && tensor.dtype != "F16" && tensor.dtype != "F32") {
                return make_error(
                    ErrorCode::kInvalidArgument,
                    "'{}' has dtype '{}'; accepted are BF16, F16 and F32",
                    tensor.name,
                    tensor.dtype
                );
            }
            if (options_.adopt && (tensor.dtype != "BF16" || options_.partial)) {
                return make_error(
                    ErrorCode::kUnsupported,
                    "'{}' is {}: a shard to adopt is BF16, and the whole model",
                    tensor.name,
                    tensor.dtype
                );
            }
        }
        if (tensors_.empty())
            return make_error(ErrorCode::kInvalidArgument, "there is no tensor to push");
        return Ok{};
    }

    Result<std::vector<std::string>> find_workers() {
        ASSIGN_OR_RETURN(const messages::StatusReply status, client_.status(options_.timeout));
        std::vector<std::string> devices;
        for (const messages::ReplicaStatus& replica : status.replicas) {
            for (const messages::WorkerStatus& worker : replica.workers)
                devices.push_back(worker.device_uuid);
        }
        if (devices.empty())
            return make_error(ErrorCode::kUnavailable, "the tree has no worker to push to");
        report_.num_workers = static_cast<std::int64_t>(devices.size());
        return devices;
    }

    Result<> begin_session() {
        messages::BeginUpdate begin;
        begin.idle_timeout_ms = kIdleMax.count();
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

    // The tree has ended the bucket while workers still owe answers.
    std::optional<Error> is_over() {
        const MutexLock lock(shared_->mutex);
        if (!shared_->is_filled || *shared_->filled) return std::nullopt;
        return shared_->filled->error();
    }

    void wait_for_bucket() {
        constexpr auto kLook = std::chrono::milliseconds(1);
        const TimePoint deadline = Clock::now() + options_.timeout;
        while (!shared_->is_filled && Clock::now() < deadline) {
            sockets_->flush();  // a worker that has yet to come waits for what it is told
            std::this_thread::sleep_for(kLook);
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
            RETURN_IF_ERROR(take_layouts());
            RETURN_IF_ERROR(push_shards());
        } else {
            RETURN_IF_ERROR(push_buckets(*buffer));
        }
        sockets_->send_all(encode(messages::PushEnd{}));
        RETURN_IF_ERROR(take_done());
        report_.push_s = seconds(Clock::now() - begun);
        return Ok{};
    }

    // The first buckets are filled while the workers are still to come.
    Result<> take_layouts() {
        const TimePoint begun = Clock::now();
        ASSIGN_OR_RETURN(layouts_, sockets_->take_layouts(options_.stall, [this] {
            return is_over();
        }));
        report_.wait_s += seconds(Clock::now() - begun);
        for (const messages::ShardTensor& tensor : layouts_.front().tensors)
            wanted_.insert(tensor.name);
        return Ok{};
    }

    Result<> take_done() {
        if (layouts_.empty()) RETURN_IF_ERROR(take_layouts());
        const TimePoint begun = Clock::now();
        Result<> done = sockets_->take_done(options_.stall, [this] { return is_over(); });
        report_.wait_s += seconds(Clock::now() - begun);
        return done;
    }

    static std::int64_t aligned(std::int64_t bytes) {
        return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    }

    // Returns the room for as many buckets as may be under way; for two, where a tensor is larger
    // than a bucket.
    [[nodiscard]] std::int64_t buffer_bytes() const {
        std::int64_t largest = kAlignBytes;
        std::int64_t all = 0;
        for (const TensorToPush& tensor : tensors_) {
            largest = std::max(largest, aligned(tensor.bytes()));
            all += aligned(tensor.bytes());
        }
        const std::int64_t bucket = std::max(options_.bucket_bytes, largest);
        const std::int64_t room = std::max(kBucketsMax * options_.bucket_bytes, 2 * bucket);
        return std::min(room, std::max(all, kAlignBytes));
    }

    // Buckets are filled as long as there is room, while every worker reads those before: a worker
    // that has answered one finds the next in its queue.
    Result<> push_buckets(const SharedBuffer& buffer) {
        BucketRing ring(std::ssize(buffer.bytes()));
        std::size_t begin = 0;
        while (begin < tensors_.size()) {
            const std::size_t end = end_of_bucket(begin);
            ASSIGN_OR_RETURN(const std::int64_t base, take_room(ring, begin, end));
            messages::PushBucket bucket{.bucket = report_.num_buckets};
            std::vector<Piece> pieces;
            std::int64_t at = base;
            for (std::size_t i = begin; i < end; ++i) {
                const TensorToPush& tensor = tensors_[i];
                bucket.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, at});
                add_pieces(i, pieces);
                at += aligned(tensor.bytes());
            }
            const TimePoint begun = Clock::now();
            RETURN_IF_ERROR(threads_.run(pieces.size(), [&](std::size_t i) {
                const Piece& piece = pieces[i];
                std::byte* to = buffer.bytes().data() + bucket.tensors[piece.tensor - begin].offset;
                return fill(piece, to);
            }));
            report_.fill_s += seconds(Clock::now() - begun);
            sockets_->send_all(encode(bucket));
            ++report_.num_buckets;
            begin = end;
        }
        for (; ring.num_taken() > 0; ring.release_oldest()) RETURN_IF_ERROR(take_done());
        return Ok{};
    }

    // Tensors [begin, the result) share a bucket of bucket_bytes at most; a larger one has its own.
    [[nodiscard]] std::size_t end_of_bucket(std::size_t begin) const {
        std::int64_t bytes = 0;
        std::size_t end = begin;
        for (; end < tensors_.size(); ++end) {
            bytes += aligned(tensors_[end].bytes());
            if (end > begin && bytes > options_.bucket_bytes) break;
        }
        return end;
    }

    // Takes room for tensors [begin, end): behind what workers read, or where they have read.
    Result<std::int64_t> take_room(BucketRing& ring, std::size_t begin, std::size_t end) {
        std::int64_t bytes = 0;
        for (std::size_t i = begin; i < end; ++i) bytes += aligned(tensors_[i].bytes());
        while (true) {
            if (ring.num_taken() < kBucketsMax) {
                if (const auto base = ring.take(std::max(bytes, kAlignBytes))) return *base;
            }
            RETURN_IF_ERROR(take_done());
            ring.release_oldest();
        }
    }

    void add_pieces(std::size_t index, std::vector<Piece>& pieces) const {
        const TensorToPush& tensor = tensors_[index];
        const Matrix matrix = matrix_of(tensor.shape);
        const std::int64_t row_bytes =
            std::max<std::int64_t>(1, matrix.cols * element_bytes(tensor.dtype));
        const std::int64_t rows_max = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
        for (std::int64_t row = 0; row < matrix.rows; row += rows_max)
            pieces.push_back({index, row, std::min(rows_max, matrix.rows - row)});
    }

    [[nodiscard]] std::int64_t row_bytes_of(const Piece& piece) const {
        const TensorToPush& tensor = tensors_[piece.tensor];
        return matrix_of(tensor.shape).cols * element_bytes(tensor.dtype);
    }

    // The whole tensor lies at `tensor_begin`.
    Result<> fill(const Piece& piece, std::byte* tensor_begin) {
        const TensorToPush& tensor = tensors_[piece.tensor];
        const std::int64_t row_bytes = row_bytes_of(piece);
        const std::int64_t first = piece.row_begin * row_bytes;
        const std::span<std::byte> out(
            tensor_begin + first, static_cast<std::size_t>(piece.num_rows * row_bytes)
        );
        if (tensor.data == nullptr) {
            RETURN_IF_ERROR(tensor.read(first, out));
            add_digest(piece, out.data(), nullptr);
        } else {
            RETURN_IF_ERROR(visit(piece, [&](const std::byte* rows) {
                if (has_digest_) {
                    add_digest(piece, rows, out.data());
                } else if (!out.empty()) {
                    std::memcpy(out.data(), rows, out.size());
                }
                return Result<>(Ok{});
            }));
        }
        tell_progress(static_cast<std::int64_t>(out.size()));
        return Ok{};
    }

    // Calls use(rows) with the piece where it is in memory. REQUIRES: its tensor has data.
    template <class F>
    Result<> visit(const Piece& piece, F use) const {
        const TensorToPush& tensor = tensors_[piece.tensor];
        const std::int64_t row_bytes = row_bytes_of(piece);
        const std::byte* rows = tensor.data + piece.row_begin * row_bytes;
        if (!tensor.is_whole) return use(rows);
        const CutGuard guard({rows, static_cast<std::size_t>(piece.num_rows * row_bytes)});
        Result<> used = use(rows);
        RETURN_IF_ERROR(tensor.is_whole());
        if (!guard.is_cut()) return used;
        return make_error(
            ErrorCode::kDataLoss, "'{}' was cut short while it was read", tensor.name
        );
    }

    // Adds the digest of the piece at `rows`, which is also copied to `copy_to`, if that is not
    // null.
    void add_digest(const Piece& piece, const std::byte* rows, std::byte* copy_to) {
        const std::int64_t row_bytes = row_bytes_of(piece);
        if (!has_digest_ || row_bytes == 0) return;
        const std::span<const std::byte> bytes(
            rows, static_cast<std::size_t>(piece.num_rows * row_bytes)
        );
        digest::DigestRows to_digest = digest::whole_rows(bytes, row_bytes, piece.row_begin);
        to_digest.copy_to = copy_to;
        to_digest.copy_stride_bytes = row_bytes;
        to_digest.copy_path = digest::CopyPath::kCached;  // workers read it at once
        static const digest::AddRun add_run = digest::add_run_on(best_isa());
        const digest::DigestSum sum = digest::digest_of(to_digest, add_run);
        const MutexLock lock(mutex_);
        digests_[piece.tensor] += sum.digest;
    }

    void tell_progress(std::int64_t bytes) {
        const MutexLock lock(mutex_);
        bytes_sent_ += bytes;
        if (options_.on_progress)
            options_.on_progress({.bytes_sent = bytes_sent_, .bytes_total = report_.bytes});
    }

    // Maps, for each kind of worker, a tensor's name to what it wants of that tensor.
    using ShardTensors = std::vector<std::map<std::string_view, const messages::ShardTensor*>>;

    // Pushes every worker's whole shard; each piece of a tensor is read once and put wherever it is
    // wanted. Ranks of different replicas that want the same share one.
    Result<> push_shards() {
        const std::vector<messages::PushLayout>& layouts = layouts_;
        std::vector<SharedBuffer> shards;
        std::vector<std::size_t> shard_of(layouts.size());
        std::vector<const messages::PushLayout*> kinds;
        for (std::size_t i = 0; i < layouts.size(); ++i) {
            if (layouts[i].shard_bytes == 0)
                return make_error(ErrorCode::kUnsupported, "worker {} adopts no memory", i);
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
        std::vector<Piece> pieces;
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (wanted_.contains(tensors_[i].name)) add_pieces(i, pieces);
        }
        ShardTensors by_name(kinds.size());
        for (std::size_t k = 0; k < kinds.size(); ++k) {
            for (const messages::ShardTensor& tensor : kinds[k]->tensors)
                by_name[k][tensor.name] = &tensor;
        }
        const TimePoint begun = Clock::now();
        RETURN_IF_ERROR(threads_.run(pieces.size(), [&](std::size_t i) {
            return fill_shards(pieces[i], by_name, shards);
        }));
        for (SharedBuffer& shard : shards) RETURN_IF_ERROR(shard.seal());
        report_.fill_s += seconds(Clock::now() - begun);
        for (std::size_t i = 0; i < layouts.size(); ++i)
            sockets_->send(i, encode(messages::PushShard{shards[shard_of[i]].describe()}));
        report_.num_buckets = 1;
        return take_done();
    }

    Result<> fill_shards(
        const Piece& piece, const ShardTensors& by_name, const std::vector<SharedBuffer>& shards
    ) {
        const TensorToPush& tensor = tensors_[piece.tensor];
        for (const auto& kind : by_name) {
            const auto wanted = kind.find(tensor.name);
            if (wanted != kind.end() && wanted->second->shape == tensor.shape) continue;
            return make_error(
                ErrorCode::kInvalidArgument, "'{}' has another shape in the model", tensor.name
            );
        }
        const std::int64_t row_bytes = row_bytes_of(piece);
        const auto use = [&](const std::byte* rows) -> Result<> {
            add_digest(piece, rows, nullptr);  // which brings them into the cache
            for (std::size_t k = 0; k < by_name.size(); ++k) {
                for (const messages::ShardPiece& to : by_name[k].at(tensor.name)->pieces)
                    RETURN_IF_ERROR(write_overlap(piece, rows, row_bytes, to, shards[k]));
            }
            return Ok{};
        };
        if (tensor.data != nullptr) {
            RETURN_IF_ERROR(visit(piece, use));
        } else {
            thread_local std::vector<std::byte> rows;  // kept between pieces
            rows.resize(static_cast<std::size_t>(piece.num_rows * row_bytes));
            RETURN_IF_ERROR(tensor.read(piece.row_begin * row_bytes, rows));
            RETURN_IF_ERROR(use(rows.data()));
        }
        tell_progress(piece.num_rows * row_bytes);
        return Ok{};
    }

    // Writes what of the piece, whose rows are at `rows`, goes to this part of a shard.
    static Result<> write_overlap(
        const Piece& piece,
        const std::byte* rows,
        std::int64_t row_bytes,
        const messages::ShardPiece& to,
        const SharedBuffer& shard
    ) {
        const std::int64_t begin = std::max(piece.row_begin, to.row_begin);
        const std::int64_t end =
            std::min(piece.row_begin + piece.num_rows, to.row_begin + to.num_rows);
        if (begin >= end) return Ok{};
        const std::int64_t copy_bytes = to.num_cols * kElementBytes;
        const std::byte* first =
            rows + (begin - piece.row_begin) * row_bytes + to.col_begin * kElementBytes;
        const std::int64_t at = to.offset + (begin - to.row_begin) * to.row_stride;
        const auto size = static_cast<std::size_t>(copy_bytes);
        if (to.row_stride != copy_bytes) {  // a row of the shard holds more than this
            for (std::int64_t row = 0; row < end - begin; ++row)
                RETURN_IF_ERROR(
                    shard.write(at + row * to.row_stride, {first + row * row_bytes, size})
                );
            return Ok{};
        }
        const std::size_t all = static_cast<std::size_t>(end - begin) * size;
        if (copy_bytes == row_bytes) return shard.write(at, {first, all});
        thread_local std::vector<std::byte> cut;  // kept between pieces
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
        if (has_digest_ && !wanted_.empty()) {
            std::vector<messages::TensorInfo> sent;
            const MutexLock lock(mutex_);
            for (std::size_t i = 0; i < tensors_.size(); ++i) {
                if (!wanted_.contains(tensors_[i].name)) continue;
                sent.push_back({
                    .name = tensors_[i].name,
                    .dtype = "BF16",
                    .shape = tensors_[i].shape,
                    .digest = to_hex(digests_[i]),
                });
            }
            report_.digest = to_hex(messages::version_digest_of(std::move(sent)));
        }
        messages::CommitWeights commit;
        commit.session = session_;
        commit.digest = report_.digest;
        ASSIGN_OR_RETURN(report_.reply, client_.call(commit, options_.timeout));
        return ok(report_.reply);
    }

    // This is shared with the callback, which may come after a push was given up.
    struct Shared {
        Mutex mutex{};
        std::atomic<bool> is_filled{false};
        std::optional<Result<messages::UpdateReply>> filled GUARDED_BY(mutex){};
    };

    Client& client_;
    const PushOptions& options_;
    std::span<const TensorToPush> tensors_;
    TaskPool threads_;
    std::optional<PushSockets> sockets_{};
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
    std::optional<Result<messages::UpdateReply>> filled_{};
    std::vector<messages::PushLayout> layouts_{};  // by worker; empty: not answered yet
    std::uint64_t session_ = 0;
    bool has_digest_ = false;  // to declare
    std::set<std::string, std::less<>>
        wanted_{};  // the model's tensors; empty: workers did not say
    Mutex mutex_{};
    std::vector<Digest> digests_ GUARDED_BY(mutex_);  // by tensor
    std::int64_t bytes_sent_ GUARDED_BY(mutex_) = 0;
    PushReport report_{};
};

}  // namespace

std::int64_t TensorToPush::bytes() const {
    std::int64_t bytes = element_bytes(dtype);
    for (const std::int64_t extent : shape) bytes *= extent;
    return bytes;
}

Result<PushReport> WeightPusher::push(std::span<const TensorToPush> tensors) {
    return Push(client_, options_, tensors).run();
}

}  // namespace pitstop
