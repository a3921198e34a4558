#include "client/weight_pusher.h"

#include "base/check.h"
#include "base/cut_guard.h"
#include "base/isa.h"
#include "client/push_sockets.h"
#include "client/shared_buffer.h"
#include "digest/digest_rows.h"
#include "messages/codec.h"
#include "messages/version_digest.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
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

// Runs work(i) for i in [0, num) on some threads; the first error ends it.
Result<> on_threads(
    std::size_t num, int num_threads, const std::function<Result<>(std::size_t)>& work
) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> is_over{false};
    std::mutex mutex;
    std::optional<Error> error;
    const auto run = [&] {
        while (!is_over.load(std::memory_order_relaxed)) {
            const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
            if (i >= num) return;
            if (Result<> done = work(i); !done) {
                const std::lock_guard lock(mutex);
                if (!error) error = std::move(done).error();
                is_over = true;
            }
        }
    };
    std::vector<std::thread> helpers;
    const auto most = static_cast<std::size_t>(std::max(1, num_threads));
    for (std::size_t i = 1; i < std::min(most, num); ++i) helpers.emplace_back(run);
    run();
    for (std::thread& helper : helpers) helper.join();
    if (error) return *std::move(error);
    return Ok{};
}

// Part of a tensor: whole rows, read and digested in one go.
struct Piece {
    std::size_t tensor = 0;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
};

class Push {
  public:
    Push(Client& client, const PushOptions& options, std::span<const TensorToPush> tensors)
        : client_(client), options_(options), tensors_(tensors), digests_(tensors.size()) {
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
            static_cast<void>(client_.call(DropStage{.session = session_}, options_.timeout));
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
        ASSIGN_OR_RETURN(const StatusReply status, client_.status(options_.timeout));
        std::vector<std::string> devices;
        for (const ReplicaStatus& replica : status.replicas) {
            for (const WorkerStatus& worker : replica.workers)
                devices.push_back(worker.device_uuid);
        }
        report_.num_workers = static_cast<std::int64_t>(devices.size());
        return devices;
    }

    Result<> begin_session() {
        BeginUpdate begin;
        begin.idle_timeout_ms = kIdleMax.count();
        begin.update.source.kind = SourceKind::kBuckets;
        begin.update.label = options_.label;
        begin.update.kv_policy = options_.kv_policy;
        begin.update.partial = options_.partial;
        begin.update.allow_nonfinite = options_.allow_nonfinite;
        ASSIGN_OR_RETURN(const UpdateReply begun, client_.call(begin, options_.timeout));
        RETURN_IF_ERROR(ok(begun));
        session_ = begun.session;
        UpdateBucket bucket;
        bucket.session = session_;
        bucket.source.kind = SourceKind::kIpc;
        bucket.source.handles = sockets_->handles();
        bucket.source.stall_ms = options_.stall.count();
        client_.call<UpdateBucket>(
            bucket,
            [shared = shared_](Result<UpdateReply> reply) {
                if (reply) {
                    if (Result<> is_ok = ok(*reply); !is_ok) reply = std::move(is_ok).error();
                }
                const std::lock_guard lock(shared->mutex);
                shared->filled = std::move(reply);
                shared->is_filled = true;
            },
            options_.timeout
        );
        return Ok{};
    }

    static Result<> ok(const UpdateReply& reply) {
        if (reply.ok) return Ok{};
        return Error{error_code_named(reply.code), reply.message};
    }

    // The tree has ended the bucket while workers still owe answers.
    std::optional<Error> is_over() {
        const std::lock_guard lock(shared_->mutex);
        if (!shared_->is_filled || *shared_->filled) return std::nullopt;
        return shared_->filled->error();
    }

    void wait_for_bucket() {
        constexpr auto kLook = std::chrono::milliseconds(1);
        const TimePoint deadline = Clock::now() + options_.timeout;
        while (!shared_->is_filled && Clock::now() < deadline) std::this_thread::sleep_for(kLook);
        const std::lock_guard lock(shared_->mutex);
        if (shared_->is_filled) filled_ = shared_->filled;
    }

    void say_end(const Error& error) {
        PushEnd end;
        end.code = name_of(error.code);
        end.message = error.message;
        sockets_->send_to_ready(encode(end));
    }

    Result<> push() {
        const TimePoint begun = Clock::now();
        const std::int64_t half = options_.adopt ? 0 : half_bytes();
        PushOpen open;
        std::optional<SharedBuffer> buffer;
        if (half > 0) {
            ASSIGN_OR_RETURN(buffer, SharedBuffer::make(2 * half));
            open.memory = buffer->describe();
        }
        sockets_->send_all(encode(open));
        ASSIGN_OR_RETURN(
            const std::vector<PushLayout> layouts,
            sockets_->take_layouts(options_.stall, [this] { return is_over(); })
        );
        for (const ShardTensor& tensor : layouts.front().tensors) wanted_.insert(tensor.name);
        if (options_.adopt) {
            RETURN_IF_ERROR(push_shards(layouts));
        } else {
            RETURN_IF_ERROR(push_buckets(*buffer, half));
        }
        sockets_->send_all(encode(PushEnd{}));
        RETURN_IF_ERROR(take_done());
        report_.push_s = seconds(Clock::now() - begun);
        return Ok{};
    }

    Result<> take_done() {
        const TimePoint begun = Clock::now();
        Result<> done = sockets_->take_done(options_.stall, [this] { return is_over(); });
        report_.wait_s += seconds(Clock::now() - begun);
        return done;
    }

    static std::int64_t aligned(std::int64_t bytes) {
        return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    }

    // Most tensors share a bucket of bucket_bytes at most; a larger one has half the buffer.
    std::int64_t half_bytes() const {
        std::int64_t most = std::max(options_.bucket_bytes, kAlignBytes);
        std::int64_t all = 0;
        for (const TensorToPush& tensor : tensors_) {
            most = std::max(most, aligned(tensor.bytes()));
            all += aligned(tensor.bytes());
        }
        return std::min(most, std::max(all, kAlignBytes));
    }

    // Two halves take turns: one is filled while every worker reads the other.
    Result<> push_buckets(const SharedBuffer& buffer, std::int64_t half) {
        bool is_reading = false;
        std::size_t begin = 0;
        while (begin < tensors_.size()) {
            PushBucket bucket{.bucket = report_.num_buckets};
            const std::int64_t base = report_.num_buckets % 2 * half;
            std::int64_t at = 0;
            std::vector<Piece> pieces;
            std::size_t end = begin;
            for (; end < tensors_.size(); ++end) {
                const TensorToPush& tensor = tensors_[end];
                if (end > begin && at + aligned(tensor.bytes()) > options_.bucket_bytes) break;
                bucket.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, base + at});
                add_pieces(end, pieces);
                at += aligned(tensor.bytes());
            }
            const TimePoint begun = Clock::now();
            RETURN_IF_ERROR(on_threads(pieces.size(), options_.num_threads, [&](std::size_t i) {
                const Piece& piece = pieces[i];
                std::byte* to = buffer.bytes().data() + bucket.tensors[piece.tensor - begin].offset;
                return fill(piece, to);
            }));
            report_.fill_s += seconds(Clock::now() - begun);
            if (is_reading) RETURN_IF_ERROR(take_done());
            sockets_->send_all(encode(bucket));
            is_reading = true;
            ++report_.num_buckets;
            begin = end;
        }
        return take_done();
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

    // `tensor_begin`: where the whole tensor lies.
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
        if (!tensor.is_whole) {
            use(rows);
            return Ok{};
        }
        const CutGuard guard({rows, static_cast<std::size_t>(piece.num_rows * row_bytes)});
        use(rows);
        RETURN_IF_ERROR(tensor.is_whole());
        if (!guard.is_cut()) return Ok{};
        return make_error(
            ErrorCode::kDataLoss, "'{}' was cut short while it was read", tensor.name
        );
    }

    // Of the piece at `rows`, which is also copied to `copy_to`, if that is not null.
    void add_digest(const Piece& piece, const std::byte* rows, std::byte* copy_to) {
        const std::int64_t row_bytes = row_bytes_of(piece);
        if (!has_digest_ || row_bytes == 0) return;
        const std::span<const std::byte> bytes(
            rows, static_cast<std::size_t>(piece.num_rows * row_bytes)
        );
        DigestRows to_digest = whole_rows(bytes, row_bytes, piece.row_begin);
        to_digest.copy_to = copy_to;
        to_digest.copy_stride_bytes = row_bytes;
        to_digest.copy_path = CopyPath::kCached;  // workers read it at once
        static const AddRun add_run = add_run_on(best_isa());
        const DigestSum sum = digest_of(to_digest, add_run);
        const std::lock_guard lock(mutex_);
        digests_[piece.tensor] += sum.digest;
    }

    void tell_progress(std::int64_t bytes) {
        const std::lock_guard lock(mutex_);
        bytes_sent_ += bytes;
        if (options_.on_progress)
            options_.on_progress({.bytes_sent = bytes_sent_, .bytes_total = report_.bytes});
    }

    // What each kind of worker wants of each tensor.
    using ShardTensors = std::vector<std::map<std::string_view, const ShardTensor*>>;

    // Every worker's whole shard, each piece of a tensor read once and put wherever it is wanted.
    // Ranks of different replicas that want the same share one.
    Result<> push_shards(const std::vector<PushLayout>& layouts) {
        std::vector<SharedBuffer> shards;
        std::vector<std::size_t> shard_of(layouts.size());
        std::vector<const PushLayout*> kinds;
        for (std::size_t i = 0; i < layouts.size(); ++i) {
            if (layouts[i].shard_bytes == 0)
                return make_error(ErrorCode::kUnsupported, "worker {} adopts no memory", i);
            const auto same = std::ranges::find_if(kinds, [&](const PushLayout* kind) {
                return kind->rank == layouts[i].rank;
            });
            shard_of[i] = static_cast<std::size_t>(same - kinds.begin());
            if (same != kinds.end()) continue;
            kinds.push_back(&layouts[i]);
            ASSIGN_OR_RETURN(SharedBuffer shard, SharedBuffer::make(layouts[i].shard_bytes));
            shards.push_back(std::move(shard));
        }
        std::vector<Piece> pieces;
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (wanted_.contains(tensors_[i].name)) add_pieces(i, pieces);
        }
        ShardTensors by_name(kinds.size());
        for (std::size_t k = 0; k < kinds.size(); ++k) {
            for (const ShardTensor& tensor : kinds[k]->tensors) by_name[k][tensor.name] = &tensor;
        }
        const TimePoint begun = Clock::now();
        RETURN_IF_ERROR(on_threads(pieces.size(), options_.num_threads, [&](std::size_t i) {
            return fill_shards(pieces[i], by_name, shards);
        }));
        for (SharedBuffer& shard : shards) RETURN_IF_ERROR(shard.seal());
        report_.fill_s += seconds(Clock::now() - begun);
        for (std::size_t i = 0; i < layouts.size(); ++i)
            sockets_->send(i, encode(PushShard{shards[shard_of[i]].describe()}));
        report_.num_buckets = 1;
        return take_done();
    }

    Result<> fill_shards(
        const Piece& piece, const ShardTensors& by_name, const std::vector<SharedBuffer>& shards
    ) {
        const TensorToPush& tensor = tensors_[piece.tensor];
        for (const auto& kind : by_name) {
            if (kind.at(tensor.name)->shape == tensor.shape) continue;
            return make_error(
                ErrorCode::kInvalidArgument, "'{}' has another shape in the model", tensor.name
            );
        }
        const std::int64_t row_bytes = row_bytes_of(piece);
        const auto use = [&](const std::byte* rows) {
            add_digest(piece, rows, nullptr);  // which brings them into the cache
            for (std::size_t k = 0; k < by_name.size(); ++k) {
                for (const ShardPiece& to : by_name[k].at(tensor.name)->pieces)
                    copy_overlap(piece, rows, row_bytes, to, shards[k].bytes().data());
            }
        };
        if (tensor.data != nullptr) {
            RETURN_IF_ERROR(visit(piece, use));
        } else {
            thread_local std::vector<std::byte> rows;  // kept between pieces
            rows.resize(static_cast<std::size_t>(piece.num_rows * row_bytes));
            RETURN_IF_ERROR(tensor.read(piece.row_begin * row_bytes, rows));
            use(rows.data());
        }
        tell_progress(piece.num_rows * row_bytes);
        return Ok{};
    }

    // What of the piece, whose rows are at `rows`, goes to this part of a shard.
    static void copy_overlap(
        const Piece& piece,
        const std::byte* rows,
        std::int64_t row_bytes,
        const ShardPiece& to,
        std::byte* shard
    ) {
        const std::int64_t begin = std::max(piece.row_begin, to.row_begin);
        const std::int64_t end =
            std::min(piece.row_begin + piece.num_rows, to.row_begin + to.num_rows);
        const std::int64_t copy_bytes = to.num_cols * kElementBytes;
        const bool is_joined = copy_bytes == row_bytes && to.row_stride == row_bytes;
        const std::int64_t step = is_joined ? std::max<std::int64_t>(1, end - begin) : 1;
        for (std::int64_t row = begin; row < end; row += step) {
            std::memcpy(
                shard + to.offset + (row - to.row_begin) * to.row_stride,
                rows + (row - piece.row_begin) * row_bytes + to.col_begin * kElementBytes,
                static_cast<std::size_t>(step * copy_bytes)
            );
        }
    }

    Result<> commit() {
        wait_for_bucket();
        if (!filled_)
            return make_error(ErrorCode::kDeadlineExceeded, "the tree did not answer in time");
        if (!*filled_) return filled_->error();
        report_.filled = **filled_;
        if (has_digest_ && !wanted_.empty()) {
            std::vector<TensorInfo> sent;
            for (std::size_t i = 0; i < tensors_.size(); ++i) {
                if (!wanted_.contains(tensors_[i].name)) continue;
                sent.push_back({
                    .name = tensors_[i].name,
                    .dtype = "BF16",
                    .shape = tensors_[i].shape,
                    .digest = to_hex(digests_[i]),
                });
            }
            report_.digest = to_hex(version_digest_of(std::move(sent)));
        }
        CommitWeights commit;
        commit.session = session_;
        commit.digest = report_.digest;
        ASSIGN_OR_RETURN(report_.reply, client_.call(commit, options_.timeout));
        return ok(report_.reply);
    }

    // Shared with the callback, which may come after a push was given up.
    struct Shared {
        std::mutex mutex{};
        std::atomic<bool> is_filled{false};
        std::optional<Result<UpdateReply>> filled{};
    };

    Client& client_;
    const PushOptions& options_;
    std::span<const TensorToPush> tensors_;
    std::optional<PushSockets> sockets_{};
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
    std::optional<Result<UpdateReply>> filled_{};
    std::uint64_t session_ = 0;
    bool has_digest_ = false;  // to declare
    std::set<std::string, std::less<>>
        wanted_{};  // the model's tensors; empty: workers did not say
    std::mutex mutex_{};
    std::vector<Digest> digests_;  // GUARDED_BY(mutex_); by tensor
    std::int64_t bytes_sent_ = 0;  // GUARDED_BY(mutex_)
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
