#include "client/pushed_tensors.h"

#include "base/cut_guard.h"
#include "base/isa.h"
#include "digest/digest_rows.h"
#include "messages/dtypes.h"
#include "messages/version_digest.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace pitstop {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;  // digested while in the cache

// The last dimension counts columns, the others rows; a tensor of one dimension is one row.
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

// The prefix of text tensors in models with vision. A tree knows these tensors without the prefix.
constexpr std::string_view kTextPrefix = "model.language_model.";

std::string tree_name(std::string_view name) {
    if (!name.starts_with(kTextPrefix)) return std::string(name);
    return "model." + std::string(name.substr(kTextPrefix.size()));
}

// Returns the dtype that a tree keeps the tensor in: decay rates are not rounded.
std::string_view resident_dtype(std::string_view name) {
    return name.ends_with(".A_log") ? "F32" : messages::kUsualDtype;
}

// Returns whether the tensor is resident as it is sent, so that its digest is known beforehand.
// Experts of a layer in one tensor are cut, and a wider dtype is rounded.
bool is_kept_as_sent(const TensorToPush& tensor) {
    const std::string_view name = tensor.name;
    if (name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj"))
        return false;
    return tensor.dtype == messages::kUsualDtype || tensor.dtype == resident_dtype(name);
}

// 0 for a dtype that check() refuses.
std::int64_t element_bytes_of(const TensorToPush& tensor) {
    return messages::element_bytes_of(tensor.dtype).value_or(0);
}

}  // namespace

std::int64_t TensorToPush::bytes() const {
    std::int64_t bytes = messages::element_bytes_of(dtype).value_or(0);
    for (const std::int64_t extent : shape) bytes *= extent;
    return bytes;
}

PushedTensors::PushedTensors(const PushOptions& options, std::span<const TensorToPush> tensors)
    : options_(options), tensors_(tensors), digests_(tensors.size()) {
    has_digest_ = options_.declare_digest && !options_.partial;
    for (const TensorToPush& tensor : tensors_) {
        bytes_ += tensor.bytes();
        names_.push_back(tree_name(tensor.name));
        has_digest_ = has_digest_ && is_kept_as_sent(tensor);
    }
}

Result<> PushedTensors::check() const {
    std::set<std::string_view> names;
    for (const TensorToPush& tensor : tensors_) {
        if (!names.insert(tensor.name).second)
            return make_error(ErrorCode::kInvalidArgument, "'{}' appears twice", tensor.name);
        if (!messages::element_bytes_of(tensor.dtype)) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "'{}' has dtype '{}'; accepted are BF16, F16 and F32",
                tensor.name,
                tensor.dtype
            );
        }
    }
    if (options_.adopt && options_.partial) {
        return make_error(
            ErrorCode::kUnsupported,
            "a partial push cannot be adopted: an adopted shard is a rank's part of the whole model"
        );
    }
    if (tensors_.empty()) return make_error(ErrorCode::kInvalidArgument, "the push has no tensors");
    return Ok{};
}

std::int64_t PushedTensors::row_bytes_of(std::size_t tensor) const {
    return matrix_of(tensors_[tensor].shape).cols * element_bytes_of(tensors_[tensor]);
}

std::int64_t PushedTensors::num_rows_of(std::size_t tensor) const {
    return matrix_of(tensors_[tensor].shape).rows;
}

void PushedTensors::add_pieces(const Piece& rows, std::vector<Piece>& pieces) const {
    const std::int64_t row_bytes = std::max<std::int64_t>(1, row_bytes_of(rows));
    const std::int64_t rows_max = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
    for (std::int64_t done = 0; done < rows.num_rows; done += rows_max)
        pieces.push_back(
            {rows.tensor, rows.row_begin + done, std::min(rows_max, rows.num_rows - done)}
        );
}

template <class F>
Result<> PushedTensors::visit(const Piece& piece, F use) const {
    const TensorToPush& tensor = tensors_[piece.tensor];
    const std::int64_t row_bytes = row_bytes_of(piece);
    const std::byte* rows = tensor.data + piece.row_begin * row_bytes;
    if (!tensor.is_whole) return use(rows);
    const CutGuard guard({rows, static_cast<std::size_t>(piece.num_rows * row_bytes)});
    Result<> used = use(rows);
    RETURN_IF_ERROR(tensor.is_whole());
    if (!guard.is_cut()) return used;
    return make_error(ErrorCode::kDataLoss, "'{}' was truncated while it was read", tensor.name);
}

void PushedTensors::add_digest(const Piece& piece, const std::byte* rows, std::byte* copy_to) {
    const std::int64_t row_bytes = row_bytes_of(piece);
    if (!has_digest_ || row_bytes == 0) return;
    const TensorToPush& tensor = tensors_[piece.tensor];
    if (tensor.dtype != resident_dtype(tensor.name)) return add_digest_as_f32(piece, rows, copy_to);
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

void PushedTensors::add_digest_as_f32(
    const Piece& piece, const std::byte* rows, std::byte* copy_to
) {
    const std::int64_t row_bytes = row_bytes_of(piece);
    const auto size = static_cast<std::size_t>(piece.num_rows * row_bytes);
    if (copy_to != nullptr) std::memcpy(copy_to, rows, size);
    // The upper half of an F32 element is the BF16 element.
    std::vector<std::byte> wide(2 * size);
    for (std::size_t i = 0; i < size; i += 2) std::memcpy(&wide[2 * i + 2], rows + i, 2);
    const digest::DigestRows to_digest = digest::whole_rows(wide, 2 * row_bytes, piece.row_begin);
    const digest::DigestSum sum = digest::digest_of(to_digest, digest::add_run_on(best_isa()));
    const MutexLock lock(mutex_);
    digests_[piece.tensor] += sum.digest;
}

void PushedTensors::tell_progress(std::int64_t bytes) {
    const MutexLock lock(mutex_);
    bytes_sent_ += bytes;
    if (options_.on_progress)
        options_.on_progress({.bytes_sent = bytes_sent_, .bytes_total = bytes_});
}

Result<> PushedTensors::fill(const Piece& piece, std::byte* tensor_begin) {
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

Result<> PushedTensors::read(
    const Piece& piece, const std::function<Result<>(const std::byte* rows)>& use
) {
    const TensorToPush& tensor = tensors_[piece.tensor];
    const std::int64_t row_bytes = row_bytes_of(piece);
    const auto digest_and_use = [&](const std::byte* rows) -> Result<> {
        add_digest(piece, rows, nullptr);  // also brings the rows into the cache
        return use(rows);
    };
    if (tensor.data != nullptr) {
        RETURN_IF_ERROR(visit(piece, digest_and_use));
    } else {
        thread_local std::vector<std::byte> rows;  // reused between pieces
        rows.resize(static_cast<std::size_t>(piece.num_rows * row_bytes));
        RETURN_IF_ERROR(tensor.read(piece.row_begin * row_bytes, rows));
        RETURN_IF_ERROR(digest_and_use(rows.data()));
    }
    tell_progress(piece.num_rows * row_bytes);
    return Ok{};
}

std::string PushedTensors::version_digest(const std::function<bool(std::string_view name)>& is_sent
) {
    if (!has_digest_) return {};
    std::vector<messages::TensorInfo> sent;
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (!is_sent(names_[i])) continue;
        sent.push_back({
            .name = names_[i],
            .dtype = std::string(resident_dtype(names_[i])),
            .shape = tensors_[i].shape,
            .digest = to_hex(digests_[i]),
        });
    }
    return to_hex(messages::version_digest_of(std::move(sent)));
}

}  // namespace pitstop
