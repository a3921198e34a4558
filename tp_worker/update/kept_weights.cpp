#include "tp_worker/update/kept_weights.h"

#include "base/digest.h"
#include "checkpoint/safetensors.h"
#include "digest/digest_rows.h"
#include "messages/version_digest.h"
#include "tp_worker/update/kept_directory.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::ordered_json;

class OpenFile {
  public:
    OpenFile(const std::string& path, int flags) : fd_(::open(path.c_str(), flags, 0600)) {}
    ~OpenFile() {
        if (fd_ >= 0) ::close(fd_);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    [[nodiscard]] int fd() const { return fd_; }

  private:
    int fd_;
};

}  // namespace

// The open file, and its written part that may not be on the disk yet.
struct KeptWeights::Output {
    int fd = -1;
    std::string path{};
    std::int64_t num_dirty = 0;
    std::vector<std::byte> scratch{};

    Result<> put(std::int64_t at, std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t num = ::pwrite(fd, bytes.data(), bytes.size(), at);
            if (num < 0 && errno == EINTR) continue;
            if (num <= 0) return io_error("cannot write", path, num < 0 ? errno : ENOSPC);
            at += num;
            num_dirty += num;
            bytes = bytes.subspan(static_cast<std::size_t>(num));
        }
        if (num_dirty < kKeepDirtyBytesMax) return Ok{};
        return sync();
    }

    Result<> sync() {
        num_dirty = 0;
        if (::fdatasync(fd) != 0) return io_error("cannot sync", path, errno);
        return Ok{};
    }
};

KeptWeights::KeptWeights(const WeightLayout& layout, const messages::WorkerKeep& name, Names names)
    : layout_(layout), names_(std::move(names)) {
    Json header;
    header["__metadata__"] = {
        {"format", "pt"},  // transformers refuses a file without this
        {"pitstop_epoch", std::to_string(raw(name.epoch))},
        {"pitstop_label", name.label},
        {"pitstop_digest", name.digest}};
    std::int64_t at = 0;
    for (const WeightTensor& tensor : layout.tensors()) {
        const std::int64_t bytes = tensor.whole_bytes();
        header[names_.prefix + tensor.name] = {
            {"dtype", std::string(name_of(tensor.encoding))},
            {"shape", tensor.shape},
            {"data_offsets", {at, at + bytes}}};
        offsets_.push_back(at);
        at += bytes;
    }
    std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');  // so that tensors are aligned
    const std::uint64_t size = text.size();
    head_.resize(sizeof size);
    std::memcpy(head_.data(), &size, sizeof size);
    head_ += text;
    const auto head_bytes = static_cast<std::int64_t>(head_.size());
    for (std::int64_t& offset : offsets_) offset += head_bytes;
    file_bytes_ = head_bytes + at;
}

Result<> KeptWeights::create(const std::string& directory) const {
    const std::string path = fmt::format("{}/{}", directory, names_.file);
    const OpenFile file(path, O_WRONLY | O_CREAT | O_CLOEXEC);
    if (file.fd() < 0) return io_error("cannot make", path, errno);
    // Reserves the space now, if the file system can do that, so that a full disk is
    // detected at once.
    if (::fallocate(file.fd(), 0, 0, file_bytes_) != 0) {
        if (errno != EOPNOTSUPP) return io_error("cannot reserve space for", path, errno);
        if (::ftruncate(file.fd(), file_bytes_) != 0)
            return io_error("cannot enlarge", path, errno);
    }
    Output output{.fd = file.fd(), .path = path};
    return output.put(0, std::as_bytes(std::span(head_)));
}

Result<> KeptWeights::write(const WriteArgs& args) const {
    const std::string path = fmt::format("{}/{}", args.directory, names_.file);
    const OpenFile file(path, O_WRONLY | O_CREAT | O_CLOEXEC);
    if (file.fd() < 0) return io_error("cannot open", path, errno);
    Output output{.fd = file.fd(), .path = path};
    for (std::size_t i = 0; i < offsets_.size(); ++i)
        RETURN_IF_ERROR(write_tensor(layout_.tensors()[i], offsets_[i], args, output));
    return output.sync();
}

Result<> KeptWeights::write_tensor(
    const WeightTensor& tensor, std::int64_t at, const WriteArgs& args, Output& output
) const {
    if (tensor.is_replicated && !args.is_root) return Ok{};
    const std::int64_t rows_max = std::max<std::int64_t>(1, kKeepPieceBytes / tensor.row_bytes());
    for (const ShardPart& part : tensor.parts) {
        for (std::int64_t row = 0; row < part.rows; row += rows_max) {
            const ShardPart piece = part.in_shard_rows(part.shard_row + row, rows_max);
            RETURN_IF_ERROR(write_piece(tensor, piece, at, args, output));
            args.between();
        }
    }
    return Ok{};
}

Result<> KeptWeights::write_piece(
    const WeightTensor& tensor,
    const ShardPart& piece,
    std::int64_t at,
    const WriteArgs& args,
    Output& output
) const {
    if (piece.is_empty()) return Ok{};
    const std::int64_t row_bytes = bytes_of(tensor.encoding, piece.cols);
    const std::int64_t stride_bytes = bytes_of(tensor.encoding, piece.shard_stride);
    const std::int64_t file_stride_bytes = bytes_of(tensor.encoding, piece.whole_stride);
    const std::int64_t span_bytes = (piece.rows - 1) * stride_bytes + row_bytes;
    output.scratch.resize(static_cast<std::size_t>(span_bytes));
    RETURN_IF_ERROR(args.copy(tensor.offset_of(piece.shard_begin()), output.scratch));
    const std::span<const std::byte> bytes(output.scratch);
    const std::int64_t file_at = at + bytes_of(tensor.encoding, piece.whole_begin());
    if (piece.is_contiguous()) return output.put(file_at, bytes);
    for (std::int64_t row = 0; row < piece.rows; ++row) {
        const std::int64_t row_at = file_at + row * file_stride_bytes;
        const auto begin = static_cast<std::size_t>(row * stride_bytes);
        RETURN_IF_ERROR(
            output.put(row_at, bytes.subspan(begin, static_cast<std::size_t>(row_bytes)))
        );
    }
    return Ok{};
}

Result<std::string> digest_of_checkpoint(
    const std::string& directory, digest::AddRun add_run, const std::function<Result<>()>& between
) {
    ASSIGN_OR_RETURN(
        const checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::open(directory)
    );
    std::vector<messages::TensorInfo> tensors;
    std::vector<std::byte> scratch;
    for (const checkpoint::StoredTensor& stored : checkpoint.tensors()) {
        const std::vector<std::int64_t>& shape = stored.spec.shape;
        const std::int64_t row_bytes = shape.empty() ? bytes_of(stored.spec.dtype)
                                                     : shape.back() * bytes_of(stored.spec.dtype);
        const std::int64_t rows_max = std::max<std::int64_t>(1, kKeepPieceBytes / row_bytes);
        const std::int64_t num_rows = stored.bytes / row_bytes;
        Digest digest;
        for (std::int64_t row = 0; row < num_rows; row += rows_max) {
            const std::int64_t num = std::min(rows_max, num_rows - row);
            scratch.resize(static_cast<std::size_t>(num * row_bytes));
            RETURN_IF_ERROR(checkpoint.read(stored, row * row_bytes, scratch));
            digest +=
                digest::digest_of(digest::whole_rows(scratch, row_bytes, row), add_run).digest;
            RETURN_IF_ERROR(between());
        }
        tensors.push_back(
            {.name = stored.spec.name,
             .dtype = std::string(name_of(stored.spec.dtype)),
             .shape = shape,
             .digest = to_hex(digest)}
        );
    }
    return to_hex(messages::version_digest_of(std::move(tensors)));
}

}  // namespace pitstop::tp_worker
