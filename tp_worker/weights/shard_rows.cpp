#include "tp_worker/weights/shard_rows.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace pitstop::tp_worker {
namespace {

// Returns the bytes as send_rows() takes them. A file that has the shard's form is read, not
// mapped, so that its pages are not in the page table. Unmapping alone takes 60 ms per GB of 4 KiB
// pages (a VM on an AMD EPYC).
TensorBytes as_sent(const WeightTensor& tensor, const TensorBytes& bytes) {
    TensorBytes sent = bytes;
    const bool is_read_in_place = bytes.read && is_stored_as(tensor.encoding, bytes.dtype) &&
                                  std::ranges::all_of(tensor.parts, [](const ShardPart& part) {
                                      return part.is_contiguous();
                                  });
    if (is_read_in_place) sent.data = nullptr;
    return sent;
}

}  // namespace

std::vector<ShardRows> filled_rows(const WeightTensor& tensor) {
    std::vector<ShardRows> filled;
    for (const ShardPart& part : tensor.parts)
        if (!part.is_empty()) filled.push_back({part.shard_row, part.rows});
    std::ranges::sort(filled, {}, &ShardRows::begin);
    std::vector<ShardRows> joined;
    for (const ShardRows& rows : filled) {
        if (joined.empty() || joined.back().begin + joined.back().num < rows.begin) {
            joined.push_back(rows);
        } else {
            ShardRows& last = joined.back();
            last.num = std::max(last.num, rows.begin + rows.num - last.begin);
        }
    }
    return joined;
}

WeightTensor cut_rows(const WeightTensor& tensor, std::int64_t row_begin, std::int64_t num_rows) {
    WeightTensor rows = tensor;
    rows.offset = 0;
    rows.rows = num_rows;
    rows.parts.clear();
    for (const ShardPart& whole : tensor.parts) {
        ShardPart part = whole.in_shard_rows(row_begin, num_rows);
        part.shard_row -= row_begin;
        if (!part.is_empty()) rows.parts.push_back(part);
    }
    return rows;
}

void add_pieces(const WeightTensor& tensor, std::size_t item, std::vector<RowsOfItem>& pieces) {
    CHECK(tensor.row_bytes() <= PinnedPieces::kPieceBytes);
    const std::int64_t rows_max =
        std::max<std::int64_t>(1, PinnedPieces::kPieceBytes / tensor.row_bytes());
    for (const ShardRows& rows : filled_rows(tensor)) {
        for (std::int64_t done = 0; done < rows.num; done += rows_max)
            pieces.push_back({item, rows.begin + done, std::min(rows_max, rows.num - done)});
    }
}

Result<> send_rows(
    const SendRowsArgs& args, std::vector<std::byte>& scratch, const RowsWritten& rows_written
) {
    const WeightTensor rows = cut_rows(args.tensor, args.rows.row_begin, args.rows.num_rows);
    const TensorBytes bytes = as_sent(rows, args.bytes);
    PinnedPieces::Lease piece = args.pieces.take();
    RETURN_IF_ERROR(load_tensor(
        {.tensor = rows, .bytes = bytes, .ops = args.ops, .arena = piece.data()},
        scratch,
        rows_written
    ));
    const std::int64_t row_bytes = args.tensor.row_bytes();
    std::byte* const to = args.arena + args.tensor.offset + args.rows.row_begin * row_bytes;
    std::move(piece).send(to, args.rows.num_rows * row_bytes);
    return Ok{};
}

}  // namespace pitstop::tp_worker
