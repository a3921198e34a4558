#include "tokenizer_proc/weight_reads.h"

#include "messages/dtypes.h"
#include "messages/version_digest.h"
#include "tokenizer_proc/gathered.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace pitstop::tokenizer {
namespace {

constexpr std::int64_t kTensorBytesMax = std::int64_t{1} << 30;  // bounds a reply's one raw frame

}  // namespace

Result<> TensorRead::begin(const messages::WorkerTensor& piece) {
    cols_ = piece.tensor.shape.empty() ? 1 : piece.tensor.shape.back();
    rows_ = 1;
    element_bytes_ = messages::element_bytes_of(piece.tensor.dtype).value_or(0);
    for (std::size_t i = 0; i + 1 < piece.tensor.shape.size(); ++i) {
        const std::int64_t extent = piece.tensor.shape[i];
        if (extent <= 0 || rows_ > kTensorBytesMax / extent) rows_ = 0;
        rows_ *= extent;
    }
    if (element_bytes_ == 0 || rows_ <= 0 || cols_ <= 0) {
        return make_error(
            ErrorCode::kInternal,
            "'{}': unknown dtype, or a shape that is too large",
            piece.tensor.name
        );
    }
    if (cols_ > kTensorBytesMax / element_bytes_ / rows_) {
        return make_error(
            ErrorCode::kTooLarge,
            "'{}' has {} x {} elements; a reply holds at most {} bytes",
            piece.tensor.name,
            rows_,
            cols_,
            kTensorBytesMax
        );
    }
    reply_.emplace();
    reply_->epoch = piece.epoch;
    reply_->tensor = piece.tensor;
    elements_left_ = rows_ * cols_;
    reply_->data.values.resize(static_cast<std::size_t>(elements_left_ * element_bytes_));
    return Ok{};
}

Result<> TensorRead::place(const messages::WorkerTensor& piece) {
    const bool is_inside = piece.row_begin >= 0 && piece.num_rows >= 0 &&
                           piece.row_begin <= rows_ - piece.num_rows && piece.col_begin >= 0 &&
                           piece.num_cols >= 0 && piece.col_begin <= cols_ - piece.num_cols;
    const auto num_bytes =
        is_inside ? static_cast<std::size_t>(piece.num_rows * piece.num_cols * element_bytes_) : 0;
    if (!is_inside || piece.data.values.size() != num_bytes) {
        return make_error(
            ErrorCode::kInternal,
            "rank {} sent a rectangle that is not inside '{}'",
            raw(piece.rank),
            piece.tensor.name
        );
    }
    // Several ranks may have copies of the same part.
    if (!placed_.emplace(piece.row_begin, piece.col_begin).second) return Ok{};
    const auto row_bytes = static_cast<std::size_t>(piece.num_cols * element_bytes_);
    for (std::int64_t row = 0; row < piece.num_rows && row_bytes > 0; ++row) {
        const std::int64_t at = (piece.row_begin + row) * cols_ + piece.col_begin;
        std::memcpy(
            reply_->data.values.data() + at * element_bytes_,
            piece.data.values.data() + static_cast<std::size_t>(row) * row_bytes,
            row_bytes
        );
    }
    elements_left_ -= piece.num_rows * piece.num_cols;
    return Ok{};
}

std::optional<Result<messages::WeightsReply>> TensorRead::handle_piece(messages::WorkerTensor piece
) {
    using Answer = std::optional<Result<messages::WeightsReply>>;
    heard_.insert(piece.rank);
    if (!piece.verdict.is_done()) {
        return Answer(piece.verdict.error());
    }
    if (!reply_) {
        if (auto begun = begin(piece); !begun) return Answer(begun.error());
    }
    if (piece.epoch != reply_->epoch || piece.tensor != reply_->tensor) {
        return Answer(make_error(
            ErrorCode::kAborted,
            "'{}' changed from version {} to {} while it was read",
            piece.tensor.name,
            raw(reply_->epoch),
            raw(piece.epoch)
        ));
    }
    if (auto placed = place(piece); !placed) return Answer(placed.error());
    if (elements_left_ > 0) return std::nullopt;
    return Answer(*std::move(reply_));
}

std::string TensorRead::who_is_missing() const {
    std::vector<std::size_t> silent;
    for (int rank = 0; rank < tp_; ++rank) {
        if (!heard_.contains(Rank{rank})) silent.push_back(static_cast<std::size_t>(rank));
    }
    if (silent.empty()) return "replica 0, although every rank sent a part";
    return silent_ranks(/*replica=*/0, silent, static_cast<std::size_t>(tp_));
}

messages::DigestsReply merged(const std::vector<messages::WorkerDigests>& parts) {
    messages::DigestsReply reply;
    const messages::WorkerDigests& first = parts.front();
    reply.epoch = first.epoch;
    reply.label = first.label;
    std::map<ReplicaId, std::vector<messages::RankParts>> by_replica;
    for (const messages::WorkerDigests& part : parts) {
        by_replica[part.replica].push_back({part.rank, part.digests});
        if (part.epoch == first.epoch) continue;
        reply.verdict = make_error(
            ErrorCode::kAborted,
            "the version changed from {} to {} while it was digested",
            raw(std::min(first.epoch, part.epoch)),
            raw(std::max(first.epoch, part.epoch))
        );
        return reply;
    }
    for (const auto& [replica, ranks] : by_replica) {
        Result<messages::VersionDigest> version = messages::version_digest(ranks);
        if (!version) {
            reply.verdict = make_error(
                version.error().code, "replica {}: {}", raw(replica), version.error().message
            );
            return reply;
        }
        const std::string digest = to_hex(version->digest);
        if (replica == first.replica) {
            reply.digest = digest;
            reply.tensors = std::move(version->tensors);
        } else if (digest != reply.digest) {
            reply.verdict = make_error(
                ErrorCode::kDataLoss,
                "replica {} has digest {}, replica {} has {}",
                raw(first.replica),
                reply.digest,
                raw(replica),
                digest
            );
            return reply;
        }
    }
    reply.ok = true;
    return reply;
}

}  // namespace pitstop::tokenizer
