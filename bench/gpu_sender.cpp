// pitstop_gpu_sender replaces a trainer on the worker's GPU where PyTorch is not installed. The
// program loads a checkpoint's tensors into one GPU allocation and lends them through a CUDA IPC
// handle, or broadcasts them with NCCL as rank 0 of a group.
//
// Commands are lines of JSON on its input, answers lines of JSON on its output, until the input
// ends. A command that fails is answered by {"error": ...}, and the next one may be given.
//
//   {"do": "load", "dir": D}                    {"handle": hex, "bytes": n, "tensors": [...]}
//   {"do": "memory"}                            {"free_bytes": n, "total_bytes": n}, of the GPU
//   {"do": "make_id"}                           {"id": hex}: an NCCL group's
//   {"do": "join", "id": hex, "world_size": n}  {}, after all ranks have joined
//   {"do": "broadcast", "names": [...]}         {"num_broadcasts": n}: so far, this one included
//   {"do": "leave"}                             {}
#include "base/flags.h"
#include "base/time.h"
#include "checkpoint/safetensors.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_import.h"
#include "kernels/runtime/nccl.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <dlfcn.h>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace pitstop::bench {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kReadBytes = std::int64_t{64} << 20;
constexpr auto kPeerWaitMax = std::chrono::seconds(60);
constexpr int kBroadcastBlocks = 8;

struct Place {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
};

class Sender {
  public:
    // Answers a command. Errors: those of the files, the GPU and NCCL; kInvalidArgument.
    Result<Json> answer(const Json& command);

  private:
    Result<Json> load(const std::string& directory);
    Result<Json> join(const std::string& id, int world_size);
    Result<Json> broadcast(const std::vector<std::string>& names);
    Result<Json> leave();
    Result<> copy_up(const checkpoint::Checkpoint& from, const checkpoint::StoredTensor& tensor);
    Result<> wait_until_ready();

    kernels::DeviceBuffer memory_{};
    std::map<std::string, Place> places_{};
    kernels::PinnedBuffer landing_{};
    kernels::DeviceStream stream_{};
    std::optional<kernels::NcclCommunicator> group_{};
    std::int64_t num_broadcasts_ = 0;
};

Result<std::string> make_nccl_id() {
    ASSIGN_OR_RETURN(const kernels::NcclLibrary library, kernels::load_nccl());
    struct Id {
        std::array<char, kernels::kNcclIdBytes> bytes{};
    };
    void* const opened = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    auto* const get = opened == nullptr
                          ? nullptr
                          : reinterpret_cast<int (*)(Id*)>(dlsym(opened, "ncclGetUniqueId"));
    Id id;
    if (get == nullptr || get(&id) != 0) {
        return make_error(ErrorCode::kUnavailable, "{}: ncclGetUniqueId failed", library.path);
    }
    return std::string(id.bytes.data(), id.bytes.size());
}

std::string to_hex(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
}

Result<std::string> from_hex(const std::string& text) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
        unsigned value = 0;
        const char* const end = text.data() + i + 2;
        const auto [stopped, error] = std::from_chars(text.data() + i, end, value, 16);
        if (error != std::errc{} || stopped != end) {
            return make_error(ErrorCode::kInvalidArgument, "'{}' is not hexadecimal", text);
        }
        bytes += static_cast<char>(value);
    }
    return bytes;
}

Result<> Sender::wait_until_ready() {
    const TimePoint end = Clock::now() + kPeerWaitMax;
    while (true) {
        ASSIGN_OR_RETURN(const bool is_ready, group_->is_ready());
        if (is_ready) return Ok{};
        if (Clock::now() >= end) {
            return make_error(
                ErrorCode::kDeadlineExceeded, "the other ranks did not join the group in time"
            );
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

Result<> Sender::copy_up(
    const checkpoint::Checkpoint& from, const checkpoint::StoredTensor& tensor
) {
    auto* const to = static_cast<std::byte*>(memory_.data()) + places_[tensor.spec.name].offset;
    for (std::int64_t begin = 0; begin < tensor.bytes; begin += kReadBytes) {
        const std::int64_t size = std::min(kReadBytes, tensor.bytes - begin);
        const std::span piece(landing_.data(), static_cast<std::size_t>(size));
        RETURN_IF_ERROR(from.read(tensor, begin, piece));
        kernels::copy_and_wait(to + begin, piece.data(), size);
    }
    return Ok{};
}

Result<Json> Sender::load(const std::string& directory) {
    ASSIGN_OR_RETURN(const checkpoint::Checkpoint found, checkpoint::Checkpoint::open(directory));
    places_.clear();
    std::int64_t size = 0;
    Json tensors = Json::array();
    for (const checkpoint::StoredTensor& tensor : found.tensors()) {
        places_[tensor.spec.name] = {size, tensor.bytes};
        tensors.push_back(
            {{"name", tensor.spec.name},
             {"dtype", checkpoint::name_of(tensor.spec.dtype)},
             {"shape", tensor.spec.shape},
             {"offset", size},
             {"bytes", tensor.bytes}}
        );
        size += (tensor.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    memory_ = {};
    ASSIGN_OR_RETURN(memory_, kernels::DeviceBuffer::create(size));
    ASSIGN_OR_RETURN(landing_, kernels::PinnedBuffer::create(kReadBytes));
    for (const checkpoint::StoredTensor& tensor : found.tensors())
        RETURN_IF_ERROR(copy_up(found, tensor));
    landing_ = {};
    const std::string handle = kernels::ipc_handle_of(memory_);
    return Json{{"handle", to_hex(handle)}, {"bytes", size}, {"tensors", tensors}};
}

Result<Json> Sender::join(const std::string& id, int world_size) {
    ASSIGN_OR_RETURN(const std::string bytes, from_hex(id));
    ASSIGN_OR_RETURN(stream_, kernels::DeviceStream::create(kernels::StreamPriority::kBackground));
    ASSIGN_OR_RETURN(
        group_,
        kernels::NcclCommunicator::begin(
            {.id = bytes, .num_ranks = world_size, .rank = 0, .max_ctas = kBroadcastBlocks}
        )
    );
    RETURN_IF_ERROR(wait_until_ready());
    return Json::object();
}

// Lays the tensors back to back, as torch.cat makes a bucket.
Result<Json> Sender::broadcast(const std::vector<std::string>& names) {
    if (!group_) return make_error(ErrorCode::kFailedPrecondition, "join a group first");
    std::int64_t size = 0;
    for (const std::string& name : names) {
        if (!places_.contains(name)) {
            return make_error(ErrorCode::kNotFound, "no tensor '{}' is loaded", name);
        }
        size += places_[name].bytes;
    }
    if (size == 0) return make_error(ErrorCode::kInvalidArgument, "no bytes to broadcast");
    ASSIGN_OR_RETURN(const kernels::DeviceBuffer bucket, kernels::DeviceBuffer::create(size));
    auto* at = static_cast<std::byte*>(bucket.data());
    for (const std::string& name : names) {
        const Place place = places_[name];
        const auto* const from = static_cast<const std::byte*>(memory_.data()) + place.offset;
        kernels::copy_on_device(at, from, place.bytes, stream_.stream());
        at += place.bytes;
    }
    RETURN_IF_ERROR(
        group_->broadcast(bucket.data(), size, kernels::NcclType::kBytes, 0, stream_.stream())
    );
    RETURN_IF_ERROR(wait_until_ready());
    stream_.wait();
    return Json{{"num_broadcasts", ++num_broadcasts_}};
}

Result<Json> Sender::leave() {
    if (!group_) return make_error(ErrorCode::kFailedPrecondition, "join a group first");
    RETURN_IF_ERROR(group_->begin_finalize());
    RETURN_IF_ERROR(wait_until_ready());
    group_->destroy();
    group_.reset();
    return Json::object();
}

Result<Json> Sender::answer(const Json& command) {
    const auto what = command.at("do").get<std::string>();
    if (what == "load") return load(command.at("dir").get<std::string>());
    if (what == "memory") {
        const kernels::DeviceMemoryInfo info = kernels::device_memory_info();
        return Json{{"free_bytes", info.free_bytes}, {"total_bytes", info.total_bytes}};
    }
    if (what == "make_id") {
        ASSIGN_OR_RETURN(const std::string id, make_nccl_id());
        return Json{{"id", to_hex(id)}};
    }
    if (what == "join")
        return join(command.at("id").get<std::string>(), command.at("world_size").get<int>());
    if (what == "broadcast") return broadcast(command.at("names").get<std::vector<std::string>>());
    if (what == "leave") return leave();
    return make_error(
        ErrorCode::kInvalidArgument,
        "unknown command '{}'; accepted are load, memory, make_id, join, broadcast and leave",
        what
    );
}

int main(int argc, char** argv) {
    FlagSet flags("pitstop_gpu_sender", "A trainer's stand-in: lends weights that are on a GPU.");
    int gpu = 0;
    flags.add("gpu", &gpu, "number of the GPU, from 0, in the driver's order");
    if (const auto code = flags.read(argc, argv)) return *code;
    const Result<kernels::CudaDeviceInfo> opened = kernels::open_cuda_device(gpu);
    if (!opened) {
        std::fprintf(stderr, "pitstop_gpu_sender: %s\n", opened.error().message.c_str());
        return 1;
    }
    std::cout << Json{{"device_uuid", opened->uuid}}.dump() << std::endl;
    Sender sender;
    for (std::string line; std::getline(std::cin, line);) {
        Json answer;
        try {
            const Result<Json> done = sender.answer(Json::parse(line));
            answer = done ? *done : Json{{"error", done.error().message}};
        } catch (const Json::exception& error) {  // no JSON, or a field is missing
            answer = {{"error", error.what()}};
        }
        std::cout << answer.dump() << std::endl;
    }
    return 0;
}

}  // namespace
}  // namespace pitstop::bench

int main(int argc, char** argv) { return pitstop::bench::main(argc, argv); }
