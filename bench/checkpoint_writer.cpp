#include "bench/checkpoint_writer.h"

#include "bench/bpe_vocabulary.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

namespace pitstop::bench {
namespace {

using Json = nlohmann::ordered_json;

// A thread makes and writes this many bytes at a time. A block has whole words of random elements
// in any dtype, and is still in the cache when the kernel copies it.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

struct Shard {
    std::string file{};
    std::vector<std::size_t> tensors{};  // indices, in the order of their data
    std::string header{};                // with its length in front
};

struct Block {
    std::size_t tensor = 0;
    std::int64_t begin = 0;  // bytes from the tensor's start
    std::int64_t bytes = 0;
    int fd = -1;
    std::int64_t file_offset = 0;
};

Error io_error(std::string_view action, const std::string& path) {
    return make_error(
        ErrorCode::kUnavailable, "cannot {} {}: {}", action, path, std::strerror(errno)
    );
}

class OpenFile {
  public:
    explicit OpenFile(const std::string& path)
        : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {}
    OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    OpenFile& operator=(OpenFile&&) = delete;
    ~OpenFile() {
        if (fd_ >= 0) ::close(fd_);
    }
    [[nodiscard]] int fd() const { return fd_; }

  private:
    int fd_;
};

Result<> write_at(int fd, std::int64_t offset, const void* data, std::size_t size) {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t written = ::pwrite(fd, next, size, offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return io_error("write", "the checkpoint");
        next += written;
        offset += written;
        size -= static_cast<std::size_t>(written);
    }
    return Ok{};
}

Result<> write_text(const std::filesystem::path& path, const std::string& text) {
    const OpenFile file(path);
    if (file.fd() < 0) return io_error("create", path);
    return write_at(file.fd(), 0, text.data(), text.size());
}

// Makes the format's header: its length as 8 little-endian bytes, then JSON padded with spaces so
// that the data begins at a multiple of 8.
std::string header_of(
    const Shard& shard, const std::vector<PlannedTensor>& tensors, WeightDtype dtype
) {
    Json header;
    header["__metadata__"] = {{"format", "pt"}};
    std::int64_t offset = 0;
    for (const std::size_t index : shard.tensors) {
        const std::int64_t end = offset + num_elements(tensors[index]) * bytes_of(dtype);
        header[tensors[index].name] = {
            {"dtype", stored_name_of(dtype)},
            {"shape", tensors[index].shape},
            {"data_offsets", {offset, end}},
        };
        offset = end;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::string framed(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) framed[i] = static_cast<char>(text.size() >> (8 * i));
    return framed + text;
}

// Assigns consecutive tensors to each shard, so that a layer's tensors stay together. A shard ends
// where the running total exceeds its share.
std::vector<Shard> split(
    const std::vector<PlannedTensor>& tensors, int num_shards, std::int64_t total_elements
) {
    std::vector<Shard> shards(static_cast<std::size_t>(num_shards));
    std::int64_t before = 0;
    std::size_t current = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::size_t tensors_left = tensors.size() - i;
        const std::size_t shards_left = shards.size() - current;
        const bool has_its_share =
            before * num_shards >= total_elements * static_cast<std::int64_t>(current + 1);
        const bool others_need_one = tensors_left < shards_left;
        if (!shards[current].tensors.empty() && shards_left > 1 &&
            (has_its_share || others_need_one)) {
            ++current;
        }
        shards[current].tensors.push_back(i);
        before += num_elements(tensors[i]);
    }
    for (std::size_t i = 0; i < shards.size(); ++i) {
        shards[i].file = num_shards == 1
                             ? "model.safetensors"
                             : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, num_shards);
    }
    return shards;
}

std::string index_of(
    const std::vector<Shard>& shards,
    const std::vector<PlannedTensor>& tensors,
    std::int64_t total_bytes
) {
    Json weight_map;
    for (const Shard& shard : shards) {
        for (const std::size_t tensor : shard.tensors)
            weight_map[tensors[tensor].name] = shard.file;
    }
    return Json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}}.dump(2) +
           "\n";
}

// Makes and writes all blocks; each thread takes the next unclaimed block.
Result<> write_blocks(
    const std::vector<Block>& blocks,
    const std::vector<RandomTensor>& values,
    const CheckpointArgs& args
) {
    std::atomic<std::size_t> next_block{0};
    std::mutex mutex;
    std::optional<Error> failure;  // guarded by mutex
    const auto work = [&] {
        // A buffer of floats is aligned for every dtype.
        std::vector<float> buffer(static_cast<std::size_t>(kBlockBytes) / sizeof(float));
        for (std::size_t i = next_block++; i < blocks.size(); i = next_block++) {
            const Block& block = blocks[i];
            const std::span<std::byte> bytes = std::as_writable_bytes(std::span(buffer))
                                                   .first(static_cast<std::size_t>(block.bytes));
            values[block.tensor].fill(block.begin / bytes_of(args.dtype), bytes);
            const Result<> written =
                write_at(block.fd, block.file_offset, bytes.data(), bytes.size());
            if (!written) {
                const std::scoped_lock lock(mutex);
                failure = written.error();
                next_block = blocks.size();
                return;
            }
        }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < args.threads; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure) return *failure;
    return Ok{};
}

Result<> make_empty_directory(const std::filesystem::path& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
        return make_error(
            ErrorCode::kInvalidArgument, "cannot make {}: {}", directory.string(), error.message()
        );
    }
    if (!std::filesystem::is_empty(directory, error) || error) {
        return make_error(
            ErrorCode::kAlreadyExists, "{} is not an empty directory", directory.string()
        );
    }
    return Ok{};
}

}  // namespace

Result<std::int64_t> write_checkpoint(const CheckpointArgs& args) {
    const std::filesystem::path directory = args.directory;
    RETURN_IF_ERROR(make_empty_directory(directory));
    const std::vector<PlannedTensor> tensors = tensors_of(args.shape);
    if (args.shards < 1 || args.shards > kShardsMax ||
        static_cast<std::size_t>(args.shards) > tensors.size()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} shards; {} tensors take 1 to {}",
            args.shards,
            tensors.size(),
            std::min<std::size_t>(kShardsMax, tensors.size())
        );
    }
    std::int64_t total_elements = 0;
    std::vector<RandomTensor> values;
    for (const PlannedTensor& tensor : tensors) {
        total_elements += num_elements(tensor);
        values.emplace_back(RandomTensor::Args{
            .name = tensor.name,
            .seed = args.seed,
            .mean = tensor.mean,
            .std = tensor.std,
            .dtype = args.dtype,
            .perturbation = args.perturbation});
    }
    const std::int64_t total_bytes = total_elements * bytes_of(args.dtype);

    std::vector<Shard> shards = split(tensors, args.shards, total_elements);
    std::vector<OpenFile> files;
    std::vector<Block> blocks;
    for (Shard& shard : shards) {
        shard.header = header_of(shard, tensors, args.dtype);
        const OpenFile& file = files.emplace_back(directory / shard.file);
        if (file.fd() < 0) return io_error("create", directory / shard.file);
        RETURN_IF_ERROR(write_at(file.fd(), 0, shard.header.data(), shard.header.size()));
        std::int64_t offset = static_cast<std::int64_t>(shard.header.size());
        for (const std::size_t tensor : shard.tensors) {
            const std::int64_t bytes = num_elements(tensors[tensor]) * bytes_of(args.dtype);
            for (std::int64_t begin = 0; begin < bytes; begin += kBlockBytes) {
                const std::int64_t size = std::min(kBlockBytes, bytes - begin);
                blocks.push_back({tensor, begin, size, file.fd(), offset + begin});
            }
            offset += bytes;
        }
    }
    RETURN_IF_ERROR(write_blocks(blocks, values, args));
    if (args.shards > 1) {
        RETURN_IF_ERROR(write_text(
            directory / "model.safetensors.index.json", index_of(shards, tensors, total_bytes)
        ));
    }
    const ModelShape& shape = args.shape;
    RETURN_IF_ERROR(
        write_text(directory / "config.json", config_json(shape, torch_name_of(args.dtype)))
    );
    RETURN_IF_ERROR(write_text(directory / "generation_config.json", generation_config_json(shape))
    );
    RETURN_IF_ERROR(write_text(directory / "tokenizer.json", tokenizer_json(shape.vocab)));
    RETURN_IF_ERROR(write_text(
        directory / "tokenizer_config.json", tokenizer_config_json(shape.vocab, shape.context)
    ));
    return total_bytes;
}

}  // namespace pitstop::bench
