#include "tp_worker/sources/push_session.h"

#include "messages/codec.h"
#include "messages/message_list.h"
#include "tp_worker/sources/ipc_source.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <span>
#include <system_error>
#include <type_traits>
#include <utility>

namespace pitstop::tp_worker {
namespace {

std::vector<std::string> frames_of(messages::Frames frames) {
    return {std::move(frames.type), std::move(frames.body)};
}

// Describes the parts of the shard that one tensor fills.
messages::ShardTensor describe(const WeightTensor& tensor) {
    messages::ShardTensor shard{
        .name = tensor.name,
        .shape = tensor.shape,
        .pieces = {},
        .dtype = std::string(name_of(tensor.encoding))};
    for (const ShardPart& part : tensor.parts) {
        if (part.is_empty()) continue;
        shard.pieces.push_back({
            .row_begin = part.whole_row,
            .num_rows = part.rows,
            .col_begin = part.whole_col,
            .num_cols = part.cols,
            .offset = tensor.offset_of(part.shard_begin()),
            .row_stride = bytes_of(tensor.encoding, part.shard_stride),
        });
    }
    return shard;
}

// Returns the bytes of the tensor's rows that lie in the bucket.
Result<std::int64_t> bytes_here(
    const messages::PushTensor& tensor, const checkpoint::TensorSpec& spec
) {
    ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_of(spec));
    if (!tensor.num_rows) return bytes;
    std::int64_t rows = 1;
    for (std::size_t d = 0; d + 1 < spec.shape.size(); ++d) rows *= spec.shape[d];
    if (tensor.row_begin <= rows && *tensor.num_rows <= rows - tensor.row_begin)
        return bytes / rows * *tensor.num_rows;
    return make_error(
        ErrorCode::kInvalidArgument,
        "'{}': {} rows from row {} on; the tensor has {}",
        tensor.name,
        *tensor.num_rows,
        tensor.row_begin,
        rows
    );
}

Result<std::string> bytes_of_hex(const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
        unsigned char byte = 0;
        const char* const first = hex.data() + i;
        const auto [end, error] = std::from_chars(first, first + 2, byte, 16);
        if (error != std::errc{} || end != first + 2) break;
        bytes.push_back(static_cast<char>(byte));
    }
    if (2 * bytes.size() == hex.size()) return bytes;
    return make_error(ErrorCode::kInvalidArgument, "an allocation's handle must be hex digits");
}

}  // namespace

Result<> PushSession::run(std::vector<std::string> first) {
    Result<> result = converse(std::move(first));
    args_.mappings.end_push();  // closes what a failed push left open
    return result;
}

Result<> PushSession::converse(std::vector<std::string> frames) {
    while (true) {
        Result<Next> next = handle_message(frames);
        if (!next) {
            refuse(next.error());
            return next.error();
        }
        if (*next == Next::kOver) return Ok{};
        const TimePoint begun = Clock::now();
        Result<std::vector<std::string>> received =
            socket_.receive(args_.stall_deadline(), args_.stage.args().is_dropped);
        args_.stage.add_wait(Clock::now() - begun);
        if (!received) {
            if (received.error().code == ErrorCode::kAborted) {
                // A pusher whose update was dropped gets this error as the answer to its next
                // message, if it sends one.
                const TimePoint until = Clock::now() + kFarewellMax;
                if (socket_.receive(until, args_.is_over())) refuse(received.error());
            }
            return received.error();
        }
        frames = *std::move(received);
    }
}

void PushSession::refuse(const Error& error) {
    if (!socket_.owes_answer()) return;
    const std::string text = text_of(args_.stage, error);
    if (!is_open_) {
        messages::PushLayout refusal;
        refusal.verdict.code = error.code;
        refusal.verdict.message = text;
        return socket_.send(frames_of(encode(refusal)));
    }
    messages::PushDone refusal;
    refusal.verdict.code = error.code;
    refusal.verdict.message = text;
    socket_.send(frames_of(encode(refusal)));
}

Result<PushSession::Next> PushSession::handle_message(const std::vector<std::string>& parts) {
    if (parts.size() != 2)
        return make_error(
            ErrorCode::kMalformed, "a message has {} frames; 2 are accepted", parts.size()
        );
    const messages::Frames frames{.type = parts[0], .body = parts[1]};
    return is_open_ ? handle_open(frames) : handle_first(frames);
}

Result<PushSession::Next> PushSession::handle_first(const messages::Frames& frames) {
    const auto use = [&](const messages::PushOpen& message) { return open(message); };
    ASSIGN_OR_RETURN(
        is_open_,
        messages::MessageList<messages::PushOpen>::dispatch(
            frames, messages::UnknownFields::kIgnore, use
        )
    );
    if (!is_open_) {
        return make_error(
            ErrorCode::kUnknownMessage,
            "a push begins with push_open, not '{}'",
            frames.type.substr(0, messages::kTypeBytesMax)
        );
    }
    socket_.send(frames_of(encode(layout())));
    return Next::kGoOn;
}

Result<PushSession::Next> PushSession::handle_open(const messages::Frames& frames) {
    using Known =
        messages::MessageList<messages::PushBucket, messages::PushShard, messages::PushEnd>;
    Next next = Next::kGoOn;
    const auto use = [&]<class Message>(const Message& message) -> Result<> {
        if constexpr (std::is_same_v<Message, messages::PushBucket>) return take_bucket(message);
        if constexpr (std::is_same_v<Message, messages::PushShard>) return stage_shard(message);
        if constexpr (std::is_same_v<Message, messages::PushEnd>) {
            next = Next::kOver;
            return close(message);
        }
    };
    ASSIGN_OR_RETURN(
        const bool is_known, Known::dispatch(frames, messages::UnknownFields::kIgnore, use)
    );
    if (!is_known) {
        return make_error(
            ErrorCode::kUnknownMessage,
            "'{}' is not a message of a pusher",
            frames.type.substr(0, messages::kTypeBytesMax)
        );
    }
    socket_.send(frames_of(encode(messages::PushDone{})));
    return next;
}

Result<> PushSession::close(const messages::PushEnd& message) {
    args_.mappings.end_push();  // before the answer, after which the pusher may free its memory
    if (!message.verdict.is_done()) {
        return make_error(
            ErrorCode::kAborted,
            "the pusher gave up: {}: {}",
            message.verdict.code_name(),
            message.verdict.message
        );
    }
    memory_.reset();
    file_.reset();
    return Ok{};
}

Result<> PushSession::open(const messages::PushOpen& message) {
    if (message.memory.bytes == 0) return Ok{};
    ASSIGN_OR_RETURN(SharedFd fd, SharedFd::open(message.memory, Seal::kNone));
    ASSIGN_OR_RETURN(memory_, SharedMapping::map(fd));
    if (fd.may_shrink()) file_ = std::move(fd);
    return Ok{};
}

messages::PushLayout PushSession::layout() const {
    messages::PushLayout layout;
    layout.rank = args_.worker.rank;
    layout.tp = args_.worker.tp;
    layout.takes_rows = true;
    if (!args_.stage.args().takes_shards) return layout;
    layout.shard_bytes = args_.stage.args().target_bytes;
    for (const WeightTensor& tensor : args_.stage.args().layout.tensors())
        layout.tensors.push_back(describe(tensor));
    return layout;
}

Result<std::vector<const kernels::DeviceImport*>> PushSession::open_allocations(
    const messages::PushBucket& message
) const {
    std::vector<const kernels::DeviceImport*> allocations;
    if (message.allocations.empty()) return allocations;
    const std::optional<CudaOpening> cuda = args_.cuda_opening();
    if (!cuda) {
        return make_error(
            ErrorCode::kUnsupported,
            "tensors in a GPU's memory for a worker that computes on the CPU; push them from host "
            "memory"
        );
    }
    cuda->mappings.begin_message();
    std::set<std::string> handles;
    for (const messages::PushAllocation& each : message.allocations) {
        if (each.device_uuid != cuda->device_uuid) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "an allocation is on device {}; this worker's is {}",
                each.device_uuid,
                cuda->device_uuid
            );
        }
        ASSIGN_OR_RETURN(std::string handle, bytes_of_hex(each.handle));
        if (!handles.insert(handle).second)
            return make_error(ErrorCode::kInvalidArgument, "a bucket names an allocation twice");
        if (handle.size() != kernels::kIpcHandleBytes) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "an allocation's handle has {} bytes, not {}",
                handle.size(),
                kernels::kIpcHandleBytes
            );
        }
        ASSIGN_OR_RETURN(
            const kernels::DeviceImport* const import, cuda->mappings.find(handle, {})
        );
        allocations.push_back(import);
    }
    return allocations;
}

Result<> PushSession::take_bucket(const messages::PushBucket& message) {
    Result<> staged = stage_bucket(message);
    args_.mappings.end_message();  // nothing reads the mappings any more
    return staged;
}

Result<> PushSession::stage_bucket(const messages::PushBucket& message) {
    const bool is_all_on_gpu = std::ranges::all_of(message.tensors, [](const auto& tensor) {
        return tensor.allocation.has_value();
    });
    if (!memory_ && !is_all_on_gpu)
        return make_error(
            ErrorCode::kFailedPrecondition, "a bucket came before any memory was named"
        );
    ASSIGN_OR_RETURN(const auto allocations, open_allocations(message));
    // The allocations of the GPU, then the host's memory.
    std::vector<std::span<const std::byte>> memories;
    for (const kernels::DeviceImport* const each : allocations)
        memories.emplace_back(each->data(), static_cast<std::size_t>(each->bytes()));
    memories.push_back(memory_ ? memory_->bytes() : std::span<const std::byte>{});
    std::vector<Placed> places;
    std::vector<Incoming> tensors;
    for (const messages::PushTensor& tensor : message.tensors) {
        ASSIGN_OR_RETURN(
            checkpoint::TensorSpec spec, read_spec(tensor.name, tensor.dtype, tensor.shape)
        );
        ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_here(tensor, spec));
        const std::int64_t index = tensor.allocation.value_or(std::ssize(message.allocations));
        const std::span<const std::byte> memory = memories[static_cast<std::size_t>(index)];
        if (tensor.offset < 0 || tensor.offset > static_cast<std::int64_t>(memory.size())) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "'{}' is at offset {} of a buffer of {} bytes",
                tensor.name,
                tensor.offset,
                memory.size()
            );
        }
        Placed placed{tensor.offset, tensor.offset + bytes, tensor.name};
        if (tensor.allocation) {  // two names of one tensor share a place
            RETURN_IF_ERROR(check_places({placed}, static_cast<std::int64_t>(memory.size())));
        } else {
            places.push_back(std::move(placed));
        }
        TensorBytes source{
            .dtype = spec.dtype,
            .data = memory.data() + tensor.offset,
            .is_on_gpu = tensor.allocation.has_value()};
        if (file_ && !source.is_on_gpu) source.is_whole = [this] { return file_->is_whole(); };
        std::optional<TensorRows> rows;
        if (tensor.num_rows) rows = {.begin = tensor.row_begin, .num = *tensor.num_rows};
        tensors.push_back({.spec = std::move(spec), .bytes = std::move(source), .rows = rows});
    }
    const auto host_bytes = static_cast<std::int64_t>(memories.back().size());
    RETURN_IF_ERROR(check_places(std::move(places), host_bytes));
    return args_.stage.stage_tensors(tensors, WeightStage::Expect::kMore);
}

Result<> PushSession::stage_shard(const messages::PushShard& message) {
    const StageArgs& stage = args_.stage.args();
    if (!stage.takes_shards)
        return make_error(
            ErrorCode::kUnsupported, "this worker cannot adopt a pusher's memory in this mode"
        );
    ASSIGN_OR_RETURN(const SharedFd fd, SharedFd::open(message.memory, Seal::kFinal));
    if (fd.bytes() != stage.target_bytes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a shard of {} bytes; this rank's has {}",
            fd.bytes(),
            stage.target_bytes
        );
    }
    if (stage.adopt) {
        RETURN_IF_ERROR(stage.adopt(fd.fd()));
        const std::span<const std::byte> adopted(
            stage.target, static_cast<std::size_t>(stage.target_bytes)
        );
        return args_.stage.stage_shard(adopted, WeightStage::Shard::kInPlace);
    }
    ASSIGN_OR_RETURN(const SharedMapping shard, SharedMapping::map(fd));
    return args_.stage.stage_shard(shard.bytes(), WeightStage::Shard::kToCopy);
}

}  // namespace pitstop::tp_worker
