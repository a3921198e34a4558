#include "tp_worker/sources/checkpoint_engine.h"

#include "base/log.h"
#include "tp_worker/sources/ipc_source.h"

#include <utility>

namespace pitstop::tp_worker {
namespace {

using pickle::Channel;
using pickle::Document;
using pickle::Global;
using pickle::Kind;
using pickle::Node;

std::span<const std::byte> as_bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
}

}  // namespace

Result<> CheckpointEngine::run(const std::string& first) {
    Result<> opened = open_buffer(first);
    if (!opened) error_ = opened.error();
    answer(opened);
    return converse();
}

Result<> CheckpointEngine::refuse(const std::string& first, Error why, TimePoint until) {
    static_cast<void>(open_buffer(first, why));
    answer(why);
    error_ = std::move(why);
    parting_until_ = until;
    return converse();
}

Result<> CheckpointEngine::converse() {
    while (true) {
        const TimePoint begun = Clock::now();
        Result<std::vector<std::string>> frames =
            parting_until_ ? socket_.receive(*parting_until_, args_.is_over())
                           : socket_.receive(args_.stall_deadline(), args_.stage.args().is_dropped);
        args_.stage.add_wait(Clock::now() - begun);
        if (!frames) {
            // Senders before 0.4.0 end a release with a single None, and close after it.
            const bool is_over =
                frames.error().code == ErrorCode::kUnavailable && num_nones_ > 0 && !error_;
            if (is_over) return Ok{};
            const bool is_dropped = frames.error().code == ErrorCode::kAborted && !parting_until_;
            if (!error_) error_ = std::move(frames).error();
            // A sender whose update was dropped gets the reason as the answer to its next message,
            // if it sends one.
            if (!is_dropped) return *std::move(error_);
            parting_until_ = Clock::now() + kFarewellMax;
            continue;
        }
        if (handle_message(frames->front()) == Next::kGoOn) continue;
        if (error_) return *std::move(error_);
        return Ok{};
    }
}

// "" is the only success. Even an unintelligible message must be answered.
void CheckpointEngine::answer(const Result<>& result) {
    if (!result) {
        spdlog::warn("bucket refused: {}", result.error().message);
        socket_.send({text_of(args_.stage, result.error())});
    } else {
        socket_.send({""});
    }
}

CheckpointEngine::Next CheckpointEngine::handle_message(const std::string& message) {
    Result<Document> document = pickle::read(as_bytes(message), Channel::kBucket);
    const bool is_exception = document && document->root().kind == Kind::kRecord &&
                              document->root().global == Global::kException;
    if (!document || is_exception) {
        // Unreadable data in place of an exception ends the update, too.
        std::string what = document ? document->root().text : document.error().message;
        for (std::size_t i = 0; is_exception && i < document->root().children.size(); ++i)
            what += ": " + document->child(document->root(), i).text;
        if (!error_) {
            error_ = make_error(
                document ? ErrorCode::kAborted : document.error().code,
                "the sender gave up the update: {}",
                what
            );
        }
        if (!document) socket_.send({error_->message});
        return Next::kOver;
    }
    if (document->root().kind == Kind::kNone) {
        buffer_ = {};
        storages_.reset();
        ++num_nones_;
        socket_.send({""});
        return num_nones_ == 2 ? Next::kOver : Next::kGoOn;
    }
    if (error_) {
        answer(*error_);  // still the first error
        return Next::kGoOn;
    }
    Result<> taken = stage_bucket(*document);
    if (!taken) error_ = taken.error();
    answer(taken);
    return Next::kGoOn;
}

// Opens the message's buffer. With `why_not`, fails with that error instead. Either way, keeps the
// reference that the message lends, so that it is returned.
Result<> CheckpointEngine::open_buffer(
    const std::string& message, const std::optional<Error>& why_not
) {
    ASSIGN_OR_RETURN(const Document document, pickle::read(as_bytes(message), Channel::kHandle));
    ASSIGN_OR_RETURN(const TensorHandle handle, read_handle(document, document.root()));
    TorchStorages& storages = storages_.emplace(args_.cuda_opening());
    Result<> opened = why_not ? Result<>(*why_not) : open_buffer(handle, storages);
    if (!opened) storages.hold(handle);
    return opened;
}

Result<> CheckpointEngine::open_buffer(const TensorHandle& handle, TorchStorages& storages) {
    if (handle.dtype != "uint8" || handle.shape.size() != 1 || handle.stride[0] != 1) {
        return make_error(
            ErrorCode::kInvalidArgument, "the buffer must be a contiguous uint8 tensor of one row"
        );
    }
    const std::string& own = args_.worker.device_uuid;
    if (handle.cuda && !handle.cuda->device_uuid.empty() &&
        "GPU-" + handle.cuda->device_uuid != own) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the buffer is on device {}; this worker's is {}",
            handle.cuda->device_uuid,
            own
        );
    }
    ASSIGN_OR_RETURN(buffer_, storages.storage(handle));
    buffer_offset_ = handle.offset;
    buffer_bytes_ = handle.shape[0];
    const std::int64_t storage_bytes = std::ssize(buffer_.bytes);
    if (buffer_offset_ > storage_bytes || buffer_bytes_ > storage_bytes - buffer_offset_) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the buffer is bytes {} to {} of a storage of {}",
            buffer_offset_,
            buffer_offset_ + buffer_bytes_,
            storage_bytes
        );
    }
    return Ok{};
}

Result<> CheckpointEngine::stage_bucket(const Document& document) {
    const Node& list = document.root();
    if (list.kind != Kind::kList || num_nones_ > 0) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a bucket must be a list, and must come before the first None"
        );
    }
    std::vector<Incoming> tensors;
    std::vector<Placed> places;
    for (std::size_t i = 0; i < list.children.size(); ++i) {
        const Node& entry = document.child(list, i);
        const Node* name = entry.kind == Kind::kDict ? document.find(entry, "name") : nullptr;
        const Node* dtype = entry.kind == Kind::kDict ? document.find(entry, "dtype") : nullptr;
        const Node* shape = entry.kind == Kind::kDict ? document.find(entry, "shape") : nullptr;
        const Node* offset = entry.kind == Kind::kDict ? document.find(entry, "offset") : nullptr;
        if (name == nullptr || name->kind != Kind::kString || dtype == nullptr ||
            dtype->kind != Kind::kDType || shape == nullptr || offset == nullptr ||
            offset->kind != Kind::kInt || entry.children.size() != 8) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "entry {} of the bucket is not a dict of name, dtype, shape and offset",
                i
            );
        }
        std::vector<std::int64_t> extents;
        bool are_ints = shape->kind == Kind::kShape || shape->kind == Kind::kTuple ||
                        shape->kind == Kind::kList;
        for (std::size_t d = 0; are_ints && d < shape->children.size(); ++d) {
            are_ints = document.child(*shape, d).kind == Kind::kInt;
            extents.push_back(document.child(*shape, d).integer);
        }
        if (!are_ints) {
            return make_error(ErrorCode::kInvalidArgument, "'{}' has no shape", name->text);
        }
        ASSIGN_OR_RETURN(checkpoint::TensorSpec spec, read_spec(name->text, dtype->text, extents));
        ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_of(spec));
        const std::int64_t at = offset->integer;
        if (at < 0 || at > buffer_bytes_) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "'{}' is at offset {} of a buffer of {} bytes",
                spec.name,
                at,
                buffer_bytes_
            );
        }
        places.push_back({at, at + bytes, name->text});
        TensorBytes source{
            .dtype = spec.dtype,
            .data = buffer_.bytes.data() + buffer_offset_ + at,
            .is_whole = buffer_.is_whole,
            .is_on_gpu = buffer_.is_on_gpu};
        tensors.push_back({.spec = std::move(spec), .bytes = std::move(source)});
    }
    RETURN_IF_ERROR(check_places(std::move(places), buffer_bytes_));
    return args_.stage.stage_tensors(tensors, WeightStage::Expect::kMore);
}

}  // namespace pitstop::tp_worker
