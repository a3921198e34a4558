#include "tp_worker/weights/tensor_filler.h"

#include "tp_worker/weights/weight_digest.h"

#include <algorithm>

namespace pitstop::tp_worker {
bool TensorFiller::fill(const FillJob& job, bool is_in_place) {
    begin(job);
    const WeightTensor& tensor = job.tensor(args_.layout);
    if (job.incoming == nullptr) return end(keep(tensor, is_in_place));
    if (job.is_last) ++filled_.num_tensors;
    return end(load(tensor, job.incoming->bytes));
}

bool TensorFiller::digest_incoming(const FillJob& job) {
    begin(job);
    const WeightTensor& tensor = job.tensor(args_.layout);
    for (std::size_t part = 0; part < tensor.parts.size(); ++part) {
        const Result<> digested = digest_part(tensor, part, job.incoming->bytes);
        if (!digested) return end(digested);
    }
    return end(Ok{});
}

void TensorFiller::begin(const FillJob& job) {
    index_ = job.index;
    parts_ = job.parts;
    is_nonfinite_ = false;
    piece_begun_ = Clock::now();
}

bool TensorFiller::end(const Result<>& result) {
    if (!result) filled_.error = {index_, result.error()};
    return !filled_.error;
}

Result<> TensorFiller::digest_part(
    const WeightTensor& tensor, std::size_t part, const TensorBytes& bytes
) {
    const ShardPart& whole = tensor.parts[part];
    const std::int64_t row_bytes = tensor.row_bytes();
    const std::int64_t rows_max = std::max<std::int64_t>(1, kChunkBytes / row_bytes);
    std::vector<std::byte> rows(static_cast<std::size_t>(std::min(rows_max, whole.rows) * row_bytes)
    );
    for (std::int64_t done = 0; done < whole.rows; done += rows_max) {
        WeightTensor piece = tensor;  // a shard of these rows alone
        piece.parts = {whole.in_shard_rows(whole.shard_row + done, rows_max)};
        piece.parts.front().shard_row = 0;
        piece.rows = piece.parts.front().rows;
        piece.offset = 0;
        RETURN_IF_ERROR(load_tensor(
            {.tensor = piece,
             .bytes = bytes,
             .ops = args_.ops,
             .arena = rows.data(),
             .parts = parts_.subspan(part, 1),
             .add_run = args_.add_run},
            scratch_,
            // No check for finite values: the tensor that these bytes are compared with is checked.
            [&](const WrittenRows& r) { return written(piece, {.begin = r.begin, .num = r.num}); }
        ));
    }
    return Ok{};
}

Result<> TensorFiller::load(const WeightTensor& tensor, const TensorBytes& bytes) {
    return load_tensor(
        {.tensor = tensor,
         .bytes = bytes,
         .ops = args_.ops,
         .arena = args_.target,
         .parts = parts_,
         .add_run = args_.add_run},
        scratch_,
        [&](const WrittenRows& rows) { return written(tensor, rows); }
    );
}

// Keeps the tensor of a partial update as it is; a staged copy gets it from the live one.
Result<> TensorFiller::keep(const WeightTensor& tensor, bool is_in_place) {
    const std::int64_t rows_max = std::max<std::int64_t>(1, kChunkBytes / tensor.row_bytes());
    for (std::int64_t row = 0; row < tensor.rows; row += rows_max) {
        WrittenRows rows{.begin = row, .num = std::min(rows_max, tensor.rows - row)};
        rows.num_nonfinite = is_in_place || args_.target == args_.live ? digest(tensor, rows)
                                                                       : copy_live(tensor, rows);
        RETURN_IF_ERROR(written(tensor, rows));
    }
    return Ok{};
}

std::uint64_t TensorFiller::copy_live(const WeightTensor& tensor, const WrittenRows& rows) {
    return copy_rows_and_digest(
        {.tensor = tensor,
         .from = RowsFrom::kShard,
         .src = args_.live,
         .arena = args_.target,
         .row_begin = rows.begin,
         .num_rows = rows.num,
         .add_run = args_.add_run},
        parts_
    );
}

std::uint64_t TensorFiller::digest(const WeightTensor& tensor, const WrittenRows& rows) {
    const TimePoint begun = Clock::now();
    const std::uint64_t num_nonfinite = add_rows_digest(
        {.tensor = tensor,
         .arena = args_.target,
         .row_begin = rows.begin,
         .num_rows = rows.num,
         .ops = args_.ops},
        parts_
    );
    verify_now_ = Clock::now() - begun;
    return num_nonfinite;
}

// Called when rows of the shard are in place and digested.
Result<> TensorFiller::written(const WeightTensor& tensor, const WrittenRows& rows) {
    const Duration verify = std::exchange(verify_now_, Duration{});
    filled_.verify += verify;
    filled_.receive += Clock::now() - piece_begun_ - verify;
    filled_.bytes += rows.num * tensor.row_bytes();
    if (rows.num_nonfinite != 0 && !args_.spec.allow_nonfinite)
        report_nonfinite(tensor, rows.begin, rows.num);
    filled_.rest += pacer_.rest_if_due();
    if (args_.is_dropped.load(std::memory_order_relaxed))
        return make_error(ErrorCode::kAborted, "the stage was dropped");
    piece_begun_ = Clock::now();
    return Ok{};
}

// Reports the first non-finite value of rows [begin, begin + num) of the shard, which have
// at least one.
void TensorFiller::report_nonfinite(
    const WeightTensor& tensor, std::int64_t begin, std::int64_t num
) {
    if (is_nonfinite_) return;  // one report per tensor is enough
    is_nonfinite_ = true;
    const std::span<const std::byte> rows(
        args_.target + tensor.offset_of(begin * tensor.cols),
        static_cast<std::size_t>(num * tensor.row_bytes())
    );
    filled_.problems.emplace_back(index_, nonfinite_problem(tensor, begin, rows));
}

}  // namespace pitstop::tp_worker
