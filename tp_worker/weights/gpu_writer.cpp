#include "tp_worker/weights/gpu_writer.h"

#include "base/check.h"
#include "kernels/runtime/cuda_device.h"
#include "tp_worker/weights/shard_rows.h"
#include "tp_worker/weights/weight_digest.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr auto kWatch = kernels::DeviceEvent::Watch::kLoose;
constexpr auto kCloseWatch = kernels::DeviceEvent::Watch::kClose;
constexpr auto kDigestBytes = static_cast<std::int64_t>(sizeof(Digest));
constexpr auto kCountBytes = static_cast<std::int64_t>(sizeof(std::uint64_t));

bool is_written(const FillJob& job) { return job.incoming != nullptr && !job.is_only_digested; }
bool is_from_host(const FillJob& job) { return is_written(job) && !job.incoming->bytes.is_on_gpu; }

}  // namespace

Result<GpuStaging> GpuStaging::make(
    const WeightLayout& layout, const kernels::Ops& ops, PinnedPieces& pieces
) {
    GpuStaging made;
    made.pieces_ = &pieces;
    made.ops_ = &ops;
    constexpr int kMultiprocessorsPerBlock = 4;
    made.blocks_max_ =
        std::max(1, kernels::opened_cuda_device().num_multiprocessors / kMultiprocessorsPerBlock);
    made.num_jobs_ = std::ssize(layout.tensors()) + 1;
    for (const WeightTensor& tensor : layout.tensors()) {
        made.num_sums_ += std::ssize(tensor.parts);
        if (layout.is_tied(tensor)) made.num_sums_ += std::ssize(tensor.parts);
        if (tensor.row_bytes() <= PinnedPieces::kPieceBytes) continue;
        return make_error(
            ErrorCode::kUnsupported,
            "'{}' has rows of {} bytes; a GPU takes rows of at most {}",
            tensor.name,
            tensor.row_bytes(),
            PinnedPieces::kPieceBytes
        );
    }
    ++made.num_sums_;  // one more, for digests that are not used
    const std::int64_t bytes = made.num_sums_ * kDigestBytes + made.num_jobs_ * kCountBytes;
    ASSIGN_OR_RETURN(made.sums_, kernels::DeviceBuffer::create(bytes));
    ASSIGN_OR_RETURN(made.host_sums_, kernels::PinnedBuffer::create(bytes));
    ASSIGN_OR_RETURN(made.scratch_, kernels::DeviceBuffer::create(PinnedPieces::kPieceBytes));
    ASSIGN_OR_RETURN(made.is_begun_, kernels::DeviceEvent::create());
    ASSIGN_OR_RETURN(made.is_done_, kernels::DeviceEvent::create());
    return made;
}

GpuWriter::GpuWriter(const StageArgs& args, GpuStaging& gpu)
    : args_(args), gpu_(gpu), pacer_(args.pace) {}

Filled GpuWriter::fill(std::vector<FillJob> jobs, Keep keep) {
    Filled filled;
    if (jobs.empty()) return filled;
    CHECK(std::ssize(jobs) <= gpu_.num_jobs_);
    kernels::enter_cuda_device();
    const TimePoint begun = Clock::now();
    kernels::fill_device(gpu_.sums_.data(), 0, gpu_.sums_.bytes(), stream());
    std::vector<Sums> sums(jobs.size());
    std::int64_t next_sum = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        sums[i] = {.first = next_sum, .count = static_cast<std::int64_t>(i)};
        next_sum += std::ssize(jobs[i].parts);
        filled.bytes += written_bytes(jobs[i]);
        if (is_written(jobs[i]) && jobs[i].is_last) ++filled.num_tensors;
    }
    send_all(jobs, filled);
    for (std::size_t i = 0; i < jobs.size() && !filled.error; ++i) {
        const FillJob& job = jobs[i];
        if (i == jobs.size() / 2 && std::ranges::none_of(jobs, is_from_host))
            args_.at("stage_half");
        if (is_from_host(job)) continue;
        const Result<> placed =
            job.is_only_digested ? digest_incoming(job, sums[i]) : place(job, keep);
        if (!placed) filled.error = {job.index, placed.error()};
    }
    wait();  // also after an error: copies in progress read the source's memory
    const TimePoint received = Clock::now();
    filled.rest = std::exchange(rested_, Duration{});
    filled.receive = received - begun - filled.rest;
    for (std::size_t i = 0; i < jobs.size() && !filled.error; ++i) {
        if (jobs[i].is_only_digested) continue;
        const Result<> digested = digest_resident(jobs[i].tensor(args_.layout), sums[i]);
        if (!digested) filled.error = {jobs[i].index, digested.error()};
    }
    if (!filled.error) read_sums(jobs, sums, filled);
    wait();
    const Duration rest = std::exchange(rested_, Duration{});
    filled.verify = Clock::now() - received - rest;
    filled.rest += rest;
    return filled;
}

Result<> GpuWriter::place(const FillJob& job, Keep keep) {
    const WeightTensor& tensor = args_.layout.tensors()[job.index];
    const bool stays = keep == Keep::kInPlace || args_.target == args_.live;
    if (job.incoming == nullptr) return stays ? Result<>(Ok{}) : copy_paced(tensor);
    const TensorBytes& bytes = job.incoming->bytes;
    std::byte* const first_row = args_.target + tensor.offset;
    return for_each_rows(
        tensor,
        GpuStaging::kLaunchBytesMax,
        [&](std::int64_t row, std::int64_t num_rows) {
            std::byte* const to = first_row + row * tensor.row_bytes();
            return convert(cut_rows(tensor, row, num_rows), bytes, to);
        }
    );
}

Result<> GpuWriter::for_each_rows(
    const WeightTensor& tensor, std::int64_t bytes_max, const TakeRows& take
) {
    const std::int64_t rows_max = std::max<std::int64_t>(1, bytes_max / tensor.row_bytes());
    for (const ShardRows& rows : filled_rows(tensor)) {
        for (std::int64_t done = 0; done < rows.num; done += rows_max)
            RETURN_IF_ERROR(take(rows.begin + done, std::min(rows_max, rows.num - done)));
    }
    return Ok{};
}

// Sends tensors that are in the host's memory or in files. Threads claim pieces, in order. The
// first thread always works, the others only while no pass runs.
void GpuWriter::send_all(const std::vector<FillJob>& jobs, Filled& filled) {
    SharedPieces shared{.jobs = jobs, .first = std::this_thread::get_id()};
    std::int64_t num_bytes = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (!is_from_host(jobs[i])) continue;
        add_pieces(jobs[i].tensor(args_.layout), i, shared.pieces);
        num_bytes += written_bytes(jobs[i]);
    }
    // Waking a thread costs an eighth of copying this many bytes.
    constexpr std::int64_t kBytesPerThread = std::int64_t{2} << 20;
    const bool may_share = num_bytes > GpuStaging::kLaunchBytesMax || !args_.pace.is_serving();
    const auto num_threads = static_cast<std::size_t>(
        std::clamp<std::int64_t>(num_bytes / kBytesPerThread, 1, may_share ? num_threads_max() : 1)
    );
    if (num_threads == 1) {
        send_claimed(shared);
    } else {
        static_cast<void>(threads().run(num_threads, [&](std::size_t) -> Result<> {
            return send_claimed(shared), Ok{};
        }));
    }
    const MutexLock lock(shared.mutex);
    if (!shared.error) return;
    auto& [piece, error] = *shared.error;
    filled.error = {jobs[shared.pieces[piece].item].index, std::move(error)};
}

// Counts the written bytes; those of a whole tensor include its padding.
std::int64_t GpuWriter::written_bytes(const FillJob& job) const {
    const WeightTensor& tensor = job.tensor(args_.layout);
    if (job.rows == nullptr) return tensor.bytes();
    std::int64_t num_rows = 0;
    for (const ShardRows& rows : filled_rows(tensor)) num_rows += rows.num;
    return num_rows * tensor.row_bytes();
}

int GpuWriter::num_threads_max() const {
    return std::clamp(args_.num_threads, 1, gpu_.pieces_->num_threads());
}

TaskPool& GpuWriter::threads() {
    if (!threads_) threads_.emplace(num_threads_max());
    return *threads_;
}

void GpuWriter::send_claimed(SharedPieces& shared) {
    constexpr auto kLook = std::chrono::milliseconds(10);
    const std::size_t num = shared.pieces.size();
    const bool is_first = std::this_thread::get_id() == shared.first;
    std::vector<std::byte> scratch;
    while (!shared.is_over.load(std::memory_order_relaxed)) {
        if (!is_first && args_.pace.is_serving()) {
            MutexLock lock(shared.mutex);
            if (shared.num_claimed.load(std::memory_order_relaxed) >= num) return;
            shared.is_all_claimed.wait_until(lock, Clock::now() + kLook);
            continue;
        }
        const std::size_t claim = shared.num_claimed.fetch_add(1, std::memory_order_relaxed);
        if (claim >= num) break;
        if (claim == num / 2) args_.at("stage_half");
        Result<> sent = send_piece(shared, claim, scratch);
        if (sent) continue;
        shared.is_over.store(true, std::memory_order_relaxed);
        const MutexLock lock(shared.mutex);
        if (!shared.error || claim < shared.error->first)
            shared.error = {claim, std::move(sent).error()};
    }
    { const MutexLock lock(shared.mutex); }  // threads that saw an earlier state wait by now
    shared.is_all_claimed.notify_all();
}

Result<> GpuWriter::send_piece(
    SharedPieces& shared, std::size_t piece, std::vector<std::byte>& scratch
) {
    const RowsOfItem& rows = shared.pieces[piece];
    const FillJob& job = shared.jobs[rows.item];
    return send_rows(
        {.tensor = job.tensor(args_.layout),
         .bytes = job.incoming->bytes,
         .rows = rows,
         .ops = args_.ops,
         .pieces = *gpu_.pieces_,
         .arena = args_.target},
        scratch,
        [&](const WrittenRows&) {
            if (std::this_thread::get_id() == shared.first) rested_ += pacer_.rest_if_due();
            return check_dropped();
        }
    );
}

// Copies within the GPU: `rows` of the whole tensor `bytes`, to the place of their shard.
Result<> GpuWriter::convert(const WeightTensor& rows, const TensorBytes& bytes, std::byte* to) {
    RETURN_IF_ERROR(check_converted_by_ops(rows.name, rows.encoding, bytes.dtype));
    std::vector<kernels::ShardCopy> copies;
    for (const ShardPart& part : rows.parts) {
        add_conversions(
            rows.encoding,
            {.dtype = bytes.dtype,
             .from = bytes.data + part.whole_begin() * bytes_of(bytes.dtype),
             .from_stride = part.whole_stride,
             .to = to + bytes_of(rows.encoding, part.shard_begin()),
             .to_stride = part.shard_stride,
             .rows = part.rows,
             .cols = part.cols},
            copies
        );
    }
    const std::int64_t num_elements = rows.rows * rows.cols;
    const bool is_widened =
        rows.encoding == Encoding::kF32 && !is_stored_as(rows.encoding, bytes.dtype);
    return enqueue(rows.bytes() + num_elements * bytes_of(bytes.dtype), [&] {
        if (is_widened) kernels::fill_device(to, 0, rows.bytes(), stream());
        gpu_.ops_->shard_copy({.copies = copies, .blocks_max = blocks_max(), .stream = stream()});
    });
}

// Uses a scratch buffer of the device; the next call overwrites it.
Result<> GpuWriter::digest_incoming(const FillJob& job, const Sums& sums) {
    const WeightTensor& tensor = job.tensor(args_.layout);
    const TensorBytes& bytes = job.incoming->bytes;
    auto* const scratch = static_cast<std::byte*>(gpu_.scratch_.data());
    // No check for finite values: the tensor that these bytes are compared with is checked.
    const auto digest_scratch = [&](std::int64_t row, std::int64_t num_rows) {
        return digest_rows(
            {.tensor = tensor, .row_begin = row, .num_rows = num_rows, .first_row = scratch},
            {.first = sums.first, .count = std::nullopt}
        );
    };
    if (!bytes.is_on_gpu) return digest_sent(job, digest_scratch);
    return for_each_rows(
        tensor,
        PinnedPieces::kPieceBytes,
        [&](std::int64_t row, std::int64_t num_rows) -> Result<> {
            RETURN_IF_ERROR(convert(cut_rows(tensor, row, num_rows), bytes, scratch));
            return digest_scratch(row, num_rows);
        }
    );
}

// Sends one piece after another to the scratch buffer, where `digest` digests it.
Result<> GpuWriter::digest_sent(const FillJob& job, const TakeRows& digest) {
    const WeightTensor& tensor = job.tensor(args_.layout);
    std::vector<RowsOfItem> pieces;
    add_pieces(tensor, 0, pieces);
    std::vector<std::byte> unused;
    for (const RowsOfItem& rows : pieces) {
        auto* const scratch = static_cast<std::byte*>(gpu_.scratch_.data());
        RETURN_IF_ERROR(send_rows(
            {.tensor = tensor,
             .bytes = job.incoming->bytes,
             .rows = rows,
             .ops = args_.ops,
             .pieces = *gpu_.pieces_,
             .arena = scratch - tensor.offset - rows.row_begin * tensor.row_bytes()},
            unused,
            [&](const WrittenRows&) {
                rested_ += pacer_.rest_if_due();
                return check_dropped();
            }
        ));
        RETURN_IF_ERROR(digest(rows.row_begin, rows.num_rows));
    }
    return Ok{};
}

Result<> GpuWriter::digest_resident(const WeightTensor& tensor, const Sums& sums) {
    const std::byte* const shard = args_.target + tensor.offset;
    return for_each_rows(
        tensor,
        GpuStaging::kLaunchBytesMax,
        [&](std::int64_t row, std::int64_t num_rows) {
            return digest_rows(
                {.tensor = tensor,
                 .row_begin = row,
                 .num_rows = num_rows,
                 .first_row = shard + row * tensor.row_bytes()},
                sums
            );
        }
    );
}

Result<> GpuWriter::digest_rows(const ResidentRows& rows, const Sums& sums) {
    auto* const digests = static_cast<Digest*>(gpu_.sums_.data());
    auto* const counts = reinterpret_cast<std::uint64_t*>(digests + gpu_.num_sums_);
    return enqueue(rows.num_rows * rows.tensor.row_bytes(), [&] {
        for (std::size_t i = 0; i < rows.tensor.parts.size(); ++i) {
            ShardPart part = rows.tensor.parts[i].in_shard_rows(rows.row_begin, rows.num_rows);
            if (part.is_empty()) continue;
            part.shard_row -= rows.row_begin;
            kernels::DigestArgs args = digest_args(rows.tensor.encoding, part, rows.first_row);
            args.sum = digests + sums.first + i;
            args.blocks_max = blocks_max();
            args.stream = stream();
            std::uint64_t* const count = sums.count ? counts + *sums.count : nullptr;
            Digest* const unused = digests + gpu_.num_sums_ - 1;
            digest_and_count(rows.tensor.encoding, args, count, unused, *gpu_.ops_);
        }
    });
}

void GpuWriter::read_sums(
    const std::vector<FillJob>& jobs, const std::vector<Sums>& sums, Filled& filled
) {
    kernels::copy_to_host(gpu_.host_sums_.data(), gpu_.sums_.data(), gpu_.sums_.bytes(), stream());
    wait();
    const std::byte* const digests = gpu_.host_sums_.data();
    const std::byte* const counts = digests + gpu_.num_sums_ * kDigestBytes;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        for (std::size_t part = 0; part < jobs[i].parts.size(); ++part) {
            Digest sum;
            const std::int64_t at = sums[i].first + static_cast<std::int64_t>(part);
            std::memcpy(&sum, digests + at * kDigestBytes, sizeof sum);
            jobs[i].parts[part].lane0 += sum.lane0;
            jobs[i].parts[part].lane1 += sum.lane1;
        }
        std::uint64_t num_nonfinite = 0;
        std::memcpy(&num_nonfinite, counts + *sums[i].count * kCountBytes, sizeof num_nonfinite);
        if (num_nonfinite == 0 || args_.spec.allow_nonfinite) continue;
        const std::size_t index = jobs[i].index;
        filled.problems.emplace_back(index, find_nonfinite(args_.layout.tensors()[index]));
    }
    std::ranges::sort(filled.problems);
}

// Describes the tensor's first non-finite value. REQUIRES: the tensor has one.
std::string GpuWriter::find_nonfinite(const WeightTensor& tensor) {
    const std::int64_t rows_max =
        std::max<std::int64_t>(1, PinnedPieces::kPieceBytes / tensor.row_bytes());
    std::vector<std::byte> rows;
    for (std::int64_t row = 0; row < tensor.rows; row += rows_max) {
        const std::int64_t num_bytes = std::min(rows_max, tensor.rows - row) * tensor.row_bytes();
        rows.resize(static_cast<std::size_t>(num_bytes));
        const std::byte* const from = args_.target + tensor.offset_of(row * tensor.cols);
        gpu_.pieces_->fetch(rows.data(), from, num_bytes);
        if (tp_worker::find_nonfinite(tensor.encoding, rows))
            return nonfinite_problem(tensor, row, rows);
    }
    return nonfinite_problem(tensor, 0, {});
}

Result<Duration> GpuWriter::fill_target(std::span<const std::byte> bytes) {
    const std::int64_t num_bytes = args_.layout.bytes();
    CHECK(std::ssize(bytes) >= num_bytes);
    Result<> result = Ok{};
    Duration rest{};
    const std::int64_t num_threads = num_threads_max();
    for (std::int64_t begin = 0; begin < num_bytes && result;) {
        const bool is_shared = num_threads > 1 && !args_.pace.is_serving();
        const std::int64_t pieces = is_shared ? 2 * num_threads : 1;
        const std::int64_t size = std::min(pieces * PinnedPieces::kPieceBytes, num_bytes - begin);
        gpu_.pieces_->send(
            args_.target + begin, bytes.data() + begin, size, is_shared ? &threads() : nullptr
        );
        begin += size;
        rest += pacer_.rest_if_due();
        result = check_dropped();
    }
    gpu_.pieces_->wait();
    if (!result) return result.error();
    return rest;
}

Result<> GpuWriter::copy_paced(const WeightTensor& tensor) {
    for (std::int64_t begin = 0; begin < tensor.bytes(); begin += GpuStaging::kLaunchBytesMax) {
        const std::int64_t size = std::min(GpuStaging::kLaunchBytesMax, tensor.bytes() - begin);
        const std::int64_t at = tensor.offset + begin;
        RETURN_IF_ERROR(enqueue(2 * size, [&] {
            kernels::copy_on_device(args_.target + at, args_.live + at, size, stream());
        }));
    }
    return Ok{};
}

void GpuWriter::copy_live(const WeightTensor& tensor) {
    kernels::enter_cuda_device();
    // An error means that the stage was dropped, and its bytes are not used.
    static_cast<void>(copy_paced(tensor));
}

// Reads the elements in pieces, each through the device's scratch, where `use` reads them.
template <class F>
void GpuWriter::for_each_piece(const WeightTensor& tensor, const ShardElements& elements, F use) {
    kernels::enter_cuda_device();
    constexpr auto kAtBytes = static_cast<std::int64_t>(sizeof(std::int64_t));
    const auto value_bytes = static_cast<std::size_t>(bytes_of(tensor.encoding, 1));
    const std::int64_t halves = num_halves(tensor.encoding);
    const std::int64_t update_bytes = halves * kAtBytes + bytes_of(tensor.encoding, 1);
    const auto elements_max = static_cast<std::size_t>(PinnedPieces::kPieceBytes / update_bytes);
    auto* const scratch = static_cast<std::byte*>(gpu_.scratch_.data());
    for (std::size_t begin = 0; begin < elements.at.size(); begin += elements_max) {
        const std::size_t num = std::min(elements_max, elements.at.size() - begin);
        PinnedPieces::Lease piece = gpu_.pieces_->take();
        const std::size_t values_at = num * static_cast<std::size_t>(halves) * sizeof(std::int64_t);
        const auto at = halves_at(tensor.encoding, std::span(elements.at).subspan(begin, num));
        std::memcpy(piece.data(), at.data(), values_at);
        const std::byte* const values = elements.values.data() + begin * value_bytes;
        std::memcpy(piece.data() + values_at, values, num * value_bytes);
        std::move(piece).send(scratch, static_cast<std::int64_t>(num) * update_bytes);
        kernels::ScatterArgs args = scatter_of(scratch + values_at, args_.target + tensor.offset);
        args.at = reinterpret_cast<const std::int64_t*>(scratch);
        args.num = static_cast<std::int64_t>(num) * halves;
        args.stream = stream();
        use(args);
    }
}

void GpuWriter::write(const WeightTensor& tensor, const ShardElements& elements) {
    for_each_piece(tensor, elements, [&](const kernels::ScatterArgs& args) {
        gpu_.ops_->scatter(args);
    });
    wait();
}

std::int64_t GpuWriter::count_different(const WeightTensor& tensor, const ShardElements& elements) {
    kernels::enter_cuda_device();
    kernels::fill_device(gpu_.sums_.data(), 0, kCountBytes, stream());
    for_each_piece(tensor, elements, [&](kernels::ScatterArgs args) {
        args.num_different = static_cast<std::uint64_t*>(gpu_.sums_.data());
        gpu_.ops_->scatter(args);
    });
    kernels::copy_to_host(gpu_.host_sums_.data(), gpu_.sums_.data(), kCountBytes, stream());
    wait();
    std::uint64_t num = 0;
    std::memcpy(&num, gpu_.host_sums_.data(), sizeof num);
    return static_cast<std::int64_t>(num);
}

Result<> GpuWriter::check_dropped() const {
    if (!args_.is_dropped.load(std::memory_order_relaxed)) return Ok{};
    return make_error(ErrorCode::kAborted, "the stage was dropped");
}

template <class F>
Result<> GpuWriter::enqueue(std::int64_t bytes, F launch) {
    RETURN_IF_ERROR(check_dropped());
    if (bytes_since_rest_ == 0) gpu_.is_begun_.record(stream());
    launch();
    bytes_since_rest_ += bytes;
    if (bytes_since_rest_ < GpuStaging::kLaunchBytesMax) return Ok{};
    bytes_since_rest_ = 0;
    if (args_.pace.share() >= 1.0 || !args_.pace.is_serving()) return Ok{};
    gpu_.is_done_.record(stream());
    gpu_.is_done_.wait(kernels::kDeviceWaitMax, "a piece of a stage", kWatch);
    constexpr auto kRestMax =
        std::chrono::milliseconds(200);  // so that a stage always makes progress
    const std::chrono::duration<double, std::milli> used(gpu_.is_done_.ms_since(gpu_.is_begun_));
    const auto rest = std::chrono::duration_cast<Duration>(
        used * ((1.0 - args_.pace.share()) / args_.pace.share())
    );
    const TimePoint rested_from = Clock::now();
    std::this_thread::sleep_for(std::min<Duration>(rest, kRestMax));
    rested_ += Clock::now() - rested_from;
    return Ok{};
}

void GpuWriter::wait() {
    gpu_.is_done_.record(stream());
    // A loose watch adds 0.1 ms, three times per bucket of a push.
    const auto watch = args_.pace.is_serving() ? kWatch : kCloseWatch;
    gpu_.is_done_.wait(kernels::kDeviceWaitMax, "a stage of weights", watch);
    bytes_since_rest_ = 0;
}

}  // namespace pitstop::tp_worker
