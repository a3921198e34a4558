#include "tp_worker/sources/tensor_source.h"

#include "pickle/reader.h"
#include "tp_worker/sources/torch_handle.h"

#include <deque>
#include <optional>
#include <utility>

namespace pitstop::tp_worker {
namespace {

using pickle::Channel;
using pickle::Document;
using pickle::Global;
using pickle::Kind;
using pickle::Node;

Error bad_payload(std::string_view what) {
    return make_error(ErrorCode::kInvalidArgument, "serialized tensors: {}", what);
}

std::span<const std::byte> data_of(const messages::RankPayload& payload) {
    return std::as_bytes(std::span(payload.data.values));
}

std::string wrong_number(std::size_t payloads, std::size_t tp, std::size_t replicas) {
    const std::string_view ranks = tp == 1 ? "rank" : "ranks";
    if (replicas == 1)
        return fmt::format("{} payloads for {} {}; send one each", payloads, tp, ranks);
    return fmt::format(
        "{} payloads for {} replicas of {} {}; send {}, which every replica reads, or {}",
        payloads,
        replicas,
        tp,
        ranks,
        tp,
        tp * replicas
    );
}

// Returns the payload for this rank: its own, or the common one.
Result<std::span<const std::byte>> payload_of(const SourceArgs& args) {
    const std::vector<messages::RankPayload>& payloads = args.source.payloads;
    const auto rank = static_cast<std::size_t>(raw(args.worker.rank));
    const auto tp = static_cast<std::size_t>(args.worker.tp);
    const auto replica = static_cast<std::size_t>(raw(args.worker.place.replica));
    const auto replicas = static_cast<std::size_t>(args.worker.place.num_replicas);
    // A handle lends one reference: two ranks would give it back twice.
    if (payloads.size() == 1 && tp > 1 && args.source.format == messages::TensorFormat::kPickle)
        return bad_payload(fmt::format(
            "one payload for {} ranks: a handle of a tensor is for one rank; send one payload each",
            tp
        ));
    if (payloads.size() == 1) return data_of(payloads.front());
    // The payloads are one per rank of all replicas, or one per rank of a single replica; then
    // every replica uses the same ones.
    const std::size_t index = payloads.size() > tp ? replica * tp + rank : rank;
    if (payloads.size() != tp && payloads.size() != tp * replicas)
        return bad_payload(wrong_number(payloads.size(), tp, replicas));
    return data_of(payloads[index]);
}

// The contents of one pickle. Documents and storages live as long as the tensors are read: storages
// refer to the documents' nodes, and are destroyed first.
class PickledTensors {
  public:
    // With `why_not`, nothing is staged and all references are given back.
    explicit PickledTensors(const SourceArgs& args, std::optional<Error> why_not = std::nullopt)
        : args_(args), problem_(std::move(why_not)), storages_(args.cuda_opening()) {}

    Result<> read_as(messages::TensorFormat format, std::span<const std::byte> bytes) {
        return format == messages::TensorFormat::kVllmIpc ? read_vllm(bytes) : read(bytes);
    }

    [[nodiscard]] std::span<const Incoming> incoming() const { return incoming_; }

  private:
    Result<> read(std::span<const std::byte> bytes) {
        ASSIGN_OR_RETURN(const Document* const document, parse(bytes));
        const Kind kind = document->root().kind;
        if (kind == Kind::kList) return read_list(*document);
        if (kind == Kind::kDict)
            return is_bucket(*document) ? read_bucket(*document) : read_dict(*document);
        return bad_payload("not a list of (name, tensor), a dict of tensors, or a flattened bucket"
        );
    }

    // Reads vLLM's format: per tensor a dict of handles by device, or one for all of them, packed.
    Result<> read_vllm(std::span<const std::byte> bytes) {
        ASSIGN_OR_RETURN(const Document* const parsed, parse(bytes));
        const Document& document = *parsed;
        const Node& root = document.root();
        const std::vector<messages::TensorInfo>& tensors = args_.source.tensors;
        const bool is_packed = root.kind == Kind::kDict;
        if (!is_packed && (root.kind != Kind::kList || root.children.size() != tensors.size())) {
            return bad_payload(fmt::format("not a list of handles for {} tensors", tensors.size()));
        }
        if (is_packed) {
            ASSIGN_OR_RETURN(const TensorHandle handle, own_handle(document, root));
            return add_packed(handle);
        }
        for (std::size_t i = 0; i < tensors.size(); ++i)
            find(tensors[i].name, own_handle(document, document.child(root, i)), &tensors[i]);
        return add_found();
    }

    Result<const Document*> parse(std::span<const std::byte> bytes) {
        ASSIGN_OR_RETURN(Document document, pickle::read(bytes, Channel::kTensors));
        return &documents_.emplace_back(std::move(document));
    }

    Result<> add(checkpoint::TensorSpec spec, const TensorHandle& handle) {
        ASSIGN_OR_RETURN(
            const checkpoint::TensorSpec found, read_spec(spec.name, handle.dtype, handle.shape)
        );
        if (found.dtype != spec.dtype || found.shape != spec.shape) {
            return bad_payload(fmt::format(
                "'{}' is declared as {} {}; its handle is of {} {}",
                spec.name,
                name_of(spec.dtype),
                checkpoint::text_of(spec.shape),
                name_of(found.dtype),
                checkpoint::text_of(found.shape)
            ));
        }
        ASSIGN_OR_RETURN(TensorBytes bytes, storages_.open(handle, spec.dtype));
        incoming_.push_back({.spec = std::move(spec), .bytes = std::move(bytes)});
        return Ok{};
    }

    // A handle of this message. Each handle lends a reference that must be given back, so all are
    // found before any is opened.
    struct Found {
        std::string name{};
        const messages::TensorInfo* declared = nullptr;  // null: the handle itself declares it
        TensorHandle handle{};
    };

    void find(
        const std::string& name,
        Result<TensorHandle> handle,
        const messages::TensorInfo* declared = nullptr
    ) {
        if (handle) {
            found_.push_back({.name = name, .declared = declared, .handle = *std::move(handle)});
        } else if (!problem_) {
            problem_ = handle.error();
        }
    }

    // Returns the first problem found. Handles that were not opened also give their references
    // back.
    Result<> add_found() {
        Result<> result = Ok{};
        if (problem_) result = *problem_;
        for (const Found& found : found_) {
            if (result) {
                result = add(found);
            } else {
                storages_.hold(found.handle);
            }
        }
        return result;
    }

    // A buffer of several tensors, which is the message's only handle.
    struct Whole {
        checkpoint::TensorSpec spec{};
        TensorBytes bytes{};
    };
    Result<Whole> open_whole(std::string_view name, const TensorHandle& handle) {
        Result<checkpoint::TensorSpec> spec = read_spec(name, handle.dtype, handle.shape);
        Result<TensorBytes> bytes = make_error(ErrorCode::kInternal, "not opened");
        if (problem_) {
            bytes = *problem_;
        } else if (!spec) {
            bytes = spec.error();
        } else {
            bytes = storages_.open(handle, spec->dtype);
        }
        if (bytes) return Whole{.spec = *std::move(spec), .bytes = *std::move(bytes)};
        storages_.hold(handle);
        return bytes.error();
    }

    Result<> add(const Found& found) {
        const messages::TensorInfo* const declared = found.declared;
        Result<checkpoint::TensorSpec> spec =
            declared != nullptr ? read_spec(declared->name, declared->dtype, declared->shape)
                                : read_spec(found.name, found.handle.dtype, found.handle.shape);
        Result<> added = spec ? add(*std::move(spec), found.handle) : Result<>(spec.error());
        if (!added) storages_.hold(found.handle);
        return added;
    }

    // Reads [(name, tensor or LocalSerializedTensor), ...].
    Result<> read_list(const Document& document) {
        const Node& root = document.root();
        for (std::size_t i = 0; i < root.children.size(); ++i) {
            const Node& pair = document.child(root, i);
            if (pair.kind != Kind::kTuple || pair.children.size() != 2 ||
                document.child(pair, 0).kind != Kind::kString) {
                find("", bad_payload("an entry that is not (name, tensor)"));
                continue;
            }
            find_tensor(document, document.child(pair, 0).text, document.child(pair, 1));
        }
        return add_found();
    }

    // Reads {name: tensor or LocalSerializedTensor}, as an adapter's tensors are sent.
    Result<> read_dict(const Document& document) {
        const Node& root = document.root();
        for (std::size_t i = 0; i + 1 < root.children.size(); i += 2)
            find_tensor(document, document.child(root, i).text, document.child(root, i + 1));
        return add_found();
    }

    void find_tensor(const Document& document, const std::string& name, const Node& tensor) {
        const bool is_local =
            tensor.kind == Kind::kRecord && tensor.global == Global::kLocalSerializedTensor;
        find(name, is_local ? read_local(document, name, tensor) : read_handle(document, tensor));
    }

    // Reads a pickle per rank inside the pickle; one level, because `parse` allows no other in it.
    Result<TensorHandle> read_local(
        const Document& document, const std::string& name, const Node& record
    ) {
        const Node* values = document.find(record, "values");
        const auto rank = static_cast<std::size_t>(raw(args_.worker.rank));
        if (values == nullptr || values->kind != Kind::kList || rank >= values->children.size() ||
            document.child(*values, rank).kind != Kind::kBytes) {
            return bad_payload(fmt::format("'{}' has no entry for rank {}", name, rank));
        }
        const std::string& bytes = document.child(*values, rank).text;
        ASSIGN_OR_RETURN(const Document* const inner, parse(std::as_bytes(std::span(bytes))));
        return read_handle(*inner, inner->root());
    }

    [[nodiscard]] static bool is_bucket(const Document& document) {
        return document.find(document.root(), "flattened_tensor") != nullptr ||
               document.find(document.root(), "metadata") != nullptr;
    }

    // Reads {"flattened_tensor": tensor, "metadata": [FlattenedTensorMetadata, ...]}. Offsets are
    // bytes if the flattened tensor is uint8, else elements of its dtype.
    Result<> read_bucket(const Document& document) {
        const Node* flattened = document.find(document.root(), "flattened_tensor");
        const Node* metadata = document.find(document.root(), "metadata");
        if (flattened == nullptr || metadata == nullptr || metadata->kind != Kind::kList)
            return bad_payload("a flattened bucket without flattened_tensor or metadata");
        ASSIGN_OR_RETURN(const TensorHandle handle, read_handle(document, *flattened));
        ASSIGN_OR_RETURN(const Whole whole, open_whole("flattened_tensor", handle));
        ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_of(whole.spec));
        const std::int64_t unit = bytes_of(whole.spec.dtype);
        for (std::size_t i = 0; i < metadata->children.size(); ++i) {
            const Node& entry = document.child(*metadata, i);
            RETURN_IF_ERROR(add_slice(document, entry, whole.bytes, unit, bytes));
        }
        return Ok{};
    }

    Result<> add_slice(
        const Document& document,
        const Node& entry,
        const TensorBytes& source,
        std::int64_t unit,
        std::int64_t source_bytes
    ) {
        const auto field = [&](std::string_view name, Kind kind) -> const Node* {
            const Node* found = document.find(entry, name);
            return found != nullptr && found->kind == kind ? found : nullptr;
        };
        if (entry.kind != Kind::kRecord || entry.global != Global::kFlattenedTensorMetadata)
            return bad_payload("metadata that is not FlattenedTensorMetadata");
        const Node* name = field("name", Kind::kString);
        const Node* dtype = field("dtype", Kind::kDType);
        const Node* shape = field("shape", Kind::kShape);
        const Node* begin = field("start_idx", Kind::kInt);
        const Node* end = field("end_idx", Kind::kInt);
        if (name == nullptr || dtype == nullptr || shape == nullptr || begin == nullptr ||
            end == nullptr) {
            return bad_payload("metadata without name, dtype, shape, start_idx or end_idx");
        }
        std::vector<std::int64_t> extents;
        for (std::size_t i = 0; i < shape->children.size(); ++i)
            extents.push_back(document.child(*shape, i).integer);
        ASSIGN_OR_RETURN(checkpoint::TensorSpec spec, read_spec(name->text, dtype->text, extents));
        ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_of(spec));
        if (begin->integer < 0 || begin->integer > source_bytes / unit ||
            end->integer > source_bytes / unit || end->integer < begin->integer ||
            (end->integer - begin->integer) * unit != bytes) {
            return bad_payload(fmt::format(
                "'{}' is at [{}, {}) of a bucket of {} bytes, which does not fit its {} bytes",
                spec.name,
                begin->integer,
                end->integer,
                source_bytes,
                bytes
            ));
        }
        TensorBytes part = source;
        part.dtype = spec.dtype;
        part.data += begin->integer * unit;
        incoming_.push_back({.spec = std::move(spec), .bytes = std::move(part)});
        return Ok{};
    }

    // Adds one buffer with all the tensors back to back.
    Result<> add_packed(const TensorHandle& handle) {
        ASSIGN_OR_RETURN(const Whole whole, open_whole("packed", handle));
        ASSIGN_OR_RETURN(const std::int64_t room, bytes_of(whole.spec));
        std::int64_t at = 0;
        for (const messages::TensorInfo& info : args_.source.tensors) {
            ASSIGN_OR_RETURN(
                checkpoint::TensorSpec spec, read_spec(info.name, info.dtype, info.shape)
            );
            ASSIGN_OR_RETURN(const std::int64_t bytes, bytes_of(spec));
            if (bytes > room - at)
                return bad_payload(fmt::format("'{}' ends beyond the packed buffer", spec.name));
            TensorBytes part = whole.bytes;
            part.dtype = spec.dtype;
            part.data += at;
            at += bytes;
            incoming_.push_back({.spec = std::move(spec), .bytes = std::move(part)});
        }
        return Ok{};
    }

    // Finds the entry of this worker's device; "GPU-" may be missing.
    Result<const Node*> own_entry(const Document& document, const Node& by_device) const {
        if (by_device.kind != Kind::kDict) return bad_payload("a handle that is not by device");
        const std::string& uuid = args_.worker.device_uuid;
        for (const std::string& key : {uuid, uuid.substr(uuid.starts_with("GPU-") ? 4 : 0)}) {
            if (const Node* found = document.find(by_device, key)) return found;
        }
        return make_error(ErrorCode::kNotFound, "no handle for this worker's device, {}", uuid);
    }

    Result<TensorHandle> own_handle(const Document& document, const Node& by_device) const {
        ASSIGN_OR_RETURN(const Node* const own, own_entry(document, by_device));
        return read_handle(document, *own);
    }

    const SourceArgs& args_;
    std::deque<Document> documents_{};
    std::vector<Found> found_{};
    std::optional<Error> problem_;  // the first problem before anything is opened
    TorchStorages storages_;
    std::vector<Incoming> incoming_{};
};

}  // namespace

Result<std::vector<Incoming>> cut_flattened(
    std::span<const messages::TensorInfo> tensors, std::span<const std::byte> bytes
) {
    std::vector<Incoming> incoming;
    std::int64_t at = 0;
    const auto room = static_cast<std::int64_t>(bytes.size());
    for (const messages::TensorInfo& info : tensors) {
        ASSIGN_OR_RETURN(checkpoint::TensorSpec spec, read_spec(info.name, info.dtype, info.shape));
        ASSIGN_OR_RETURN(const std::int64_t size, bytes_of(spec));
        if (size > room - at) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "'{}' has {} bytes from byte {} on; {} were sent",
                spec.name,
                size,
                at,
                room
            );
        }
        TensorBytes source{.dtype = spec.dtype, .data = bytes.data() + at};
        incoming.push_back({.spec = std::move(spec), .bytes = std::move(source)});
        at += size;
    }
    if (at != room) {
        return make_error(
            ErrorCode::kInvalidArgument, "the tensors have {} bytes; {} were sent", at, room
        );
    }
    return incoming;
}

Result<std::vector<SparseTensor>> cut_sparse(
    std::span<const messages::TensorInfo> tensors,
    std::span<const std::int64_t> num_updates,
    std::span<const std::byte> bytes
) {
    constexpr std::int64_t kIndexBytes = 4;
    std::vector<SparseTensor> sparse;
    std::int64_t at = 0;
    const auto room = static_cast<std::int64_t>(bytes.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        ASSIGN_OR_RETURN(
            checkpoint::TensorSpec spec,
            read_spec(tensors[i].name, tensors[i].dtype, tensors[i].shape)
        );
        const std::int64_t num = num_updates[i];
        const std::int64_t unit = kIndexBytes + bytes_of(spec.dtype);
        if (num > (room - at) / unit) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "'{}' has {} updates from byte {} on; {} bytes were sent",
                spec.name,
                num,
                at,
                room
            );
        }
        const std::byte* indices = bytes.data() + at;
        sparse.push_back({
            .spec = std::move(spec),
            .indices = indices,
            .values = indices + num * kIndexBytes,
            .num = num,
        });
        at += num * unit;
    }
    if (at != room) {
        return make_error(
            ErrorCode::kInvalidArgument, "the updates have {} bytes; {} were sent", at, room
        );
    }
    return sparse;
}

Result<> deliver_tensors(const SourceArgs& args) {
    const Result<std::span<const std::byte>> own = payload_of(args);
    if (!own) return decline_tensors(args, own.error());
    const std::span<const std::byte> payload = *own;
    const messages::WeightSource& source = args.source;
    if (source.format == messages::TensorFormat::kFlattened) {
        ASSIGN_OR_RETURN(
            const std::vector<Incoming> tensors, cut_flattened(source.tensors, payload)
        );
        return args.stage.stage_tensors(tensors, args.expect);
    }
    if (source.format == messages::TensorFormat::kSparse) {
        ASSIGN_OR_RETURN(
            const std::vector<SparseTensor> tensors,
            cut_sparse(source.tensors, source.num_updates, payload)
        );
        return args.stage.stage_sparse(tensors);
    }
    PickledTensors tensors(args);
    RETURN_IF_ERROR(tensors.read_as(source.format, payload));
    return args.stage.stage_tensors(tensors.incoming(), args.expect);
}

Result<> decline_tensors(const SourceArgs& args, const Error& why) {
    const messages::TensorFormat format = args.source.format;
    const bool has_handles =
        format == messages::TensorFormat::kPickle || format == messages::TensorFormat::kVllmIpc;
    if (!has_handles) return why;
    if (const Result<std::span<const std::byte>> payload = payload_of(args)) {
        static_cast<void>(PickledTensors(args, why).read_as(format, *payload));
    } else if (args.worker.rank == Rank{} && args.worker.place.replica == ReplicaId{}) {
        // The payloads fit no rank, because their number differs from that of the ranks; so one
        // rank gives all references back.
        for (const messages::RankPayload& each : args.source.payloads)
            static_cast<void>(PickledTensors(args, why).read_as(format, data_of(each)));
    }
    return why;
}

}  // namespace pitstop::tp_worker
