#include "pickle/machine.h"

#include "base/utf8.h"
#include "pickle/globals.h"
#include "pickle/opcode.h"
#include "pickle/records.h"

#include <algorithm>
#include <utility>

namespace pitstop::pickle {
Result<Document> Machine::run() {
    if (input_.num_left() > kMessageBytesMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "pickle: {} bytes; at most {} are accepted",
            input_.num_left(),
            kMessageBytesMax
        );
    }
    ASSIGN_OR_RETURN(const std::uint64_t first, input_.read_uint(1));
    if (first != kProto) return input_.malformed("begins with byte {:#04x}, not with PROTO", first);
    ASSIGN_OR_RETURN(const std::uint64_t protocol, input_.read_uint(1));
    if (protocol > 5) return input_.malformed("protocol {}; 0 to 5 are known", protocol);
    for (std::size_t num_opcodes = 0; num_opcodes < kOpcodesMax; ++num_opcodes) {
        ASSIGN_OR_RETURN(const std::uint64_t opcode, input_.read_uint(1));
        if (opcode != kStop) {
            RETURN_IF_ERROR(step(static_cast<std::uint8_t>(opcode)));
            continue;
        }
        if (input_.num_left() != 0)
            return input_.malformed("{} bytes after STOP", input_.num_left());
        if (stack_.size() != 1 || !marks_.empty()) {
            return input_.malformed(
                "{} values and {} marks are left at STOP; one value is expected",
                stack_.size(),
                marks_.size()
            );
        }
        RETURN_IF_ERROR(check_keys(document_));
        document_.root_ = stack_.back();
        return std::move(document_);
    }
    return make_error(ErrorCode::kTooLarge, "pickle: more than {} opcodes", kOpcodesMax);
}

Result<> Machine::step(std::uint8_t opcode) {
    switch (opcode) {
        case kFrame: {
            ASSIGN_OR_RETURN(const std::uint64_t length, input_.read_uint(8));
            if (length > input_.num_left())
                return input_.malformed("a frame of {} bytes goes beyond the end", length);
            return Ok{};
        }
        case kMark:
            if (marks_.size() >= kNodesMax)
                return make_error(ErrorCode::kTooLarge, "pickle: more than {} marks", kNodesMax);
            marks_.push_back(stack_.size());
            return Ok{};
        case kNone:
            return push({.kind = Kind::kNone});
        case kNewTrue:
            return push({.kind = Kind::kBool, .integer = 1});
        case kNewFalse:
            return push({.kind = Kind::kBool, .integer = 0});
        case kBinInt:
            return read_int(4, /*is_signed=*/true);
        case kBinInt1:
            return read_int(1, /*is_signed=*/false);
        case kBinInt2:
            return read_int(2, /*is_signed=*/false);
        case kLong1: {
            ASSIGN_OR_RETURN(const std::uint64_t num_bytes, input_.read_uint(1));
            if (num_bytes > 8)
                return input_.malformed(
                    "an integer of {} bytes; at most 8 are accepted", num_bytes
                );
            return read_int(static_cast<std::size_t>(num_bytes), /*is_signed=*/true);
        }
        case kShortBinUnicode:
            return read_text(1, Kind::kString);
        case kBinUnicode:
            return read_text(4, Kind::kString);
        case kShortBinBytes:
            return read_text(1, Kind::kBytes);
        case kBinBytes:
            return read_text(4, Kind::kBytes);
        default:
            return step_container(opcode);
    }
}

Result<> Machine::step_container(std::uint8_t opcode) {
    switch (opcode) {
        case kEmptyTuple:
            return push({.kind = Kind::kTuple});
        case kEmptyList:
            return push({.kind = Kind::kList});
        case kEmptyDict:
            return push({.kind = Kind::kDict});
        case kTuple1:
            return push_container(Kind::kTuple, 1);
        case kTuple2:
            return push_container(Kind::kTuple, 2);
        case kTuple3:
            return push_container(Kind::kTuple, 3);
        case kTuple: {
            ASSIGN_OR_RETURN(const std::size_t begin, pop_mark());
            return push_container(Kind::kTuple, stack_.size() - begin);
        }
        case kAppend:
            return append(stack_.empty() ? 0 : stack_.size() - 1);
        case kAppends: {
            ASSIGN_OR_RETURN(const std::size_t begin, pop_mark());
            return append(begin);
        }
        case kSetItem:
            return set_items(stack_.size() < 2 ? 0 : stack_.size() - 2);
        case kSetItems: {
            ASSIGN_OR_RETURN(const std::size_t begin, pop_mark());
            return set_items(begin);
        }
        case kMemoize:
            return memoize();
        case kBinGet:
        case kLongBinGet: {
            ASSIGN_OR_RETURN(
                const std::uint64_t index, input_.read_uint(opcode == kBinGet ? 1 : 4)
            );
            return get(index);
        }
        case kStackGlobal:
            return pop_global_name();
        case kReduce:
            return reduce();
        case kNewObj:
            return make_object();
        case kBuild:
            return build();
        default:
            return step_saved(opcode);
    }
}

Result<> Machine::step_saved(std::uint8_t opcode) {
    if (channel_ != Channel::kSaved) return denied(opcode);
    switch (opcode) {
        case kGlobal: {
            ASSIGN_OR_RETURN(const std::string_view module, input_.read_line());
            ASSIGN_OR_RETURN(const std::string_view name, input_.read_line());
            return push_global(module, name);
        }
        case kBinPut:
        case kLongBinPut: {
            ASSIGN_OR_RETURN(
                const std::uint64_t index, input_.read_uint(opcode == kBinPut ? 1 : 4)
            );
            return put(index);
        }
        case kBinPersId:
            return push_saved_storage();
        default:
            return denied(opcode);
    }
}

Error Machine::denied(std::uint8_t opcode) const {
    return make_error(
        ErrorCode::kPermissionDenied,
        "pickle, byte {}: opcode {} ({:#04x}) is not allowed",
        input_.position() - 1,
        name_of(opcode),
        opcode
    );
}

Result<> Machine::read_int(std::size_t num_bytes, bool is_signed) {
    ASSIGN_OR_RETURN(std::uint64_t value, input_.read_uint(num_bytes));
    const std::size_t num_bits = num_bytes * 8;
    if (is_signed && num_bits > 0 && num_bits < 64 && (value >> (num_bits - 1)) != 0)
        value |= ~std::uint64_t{0} << num_bits;
    return push({.kind = Kind::kInt, .integer = static_cast<std::int64_t>(value)});
}

Result<> Machine::read_text(std::size_t length_bytes, Kind kind) {
    ASSIGN_OR_RETURN(const std::uint64_t length, input_.read_uint(length_bytes));
    const std::size_t bytes_max = kind == Kind::kString ? kStringBytesMax : kBytesBytesMax;
    if (length > bytes_max) {
        return make_error(
            ErrorCode::kTooLarge,
            "pickle, byte {}: a string of {} bytes; at most {} are accepted",
            input_.position(),
            length,
            bytes_max
        );
    }
    ASSIGN_OR_RETURN(const std::string_view text, input_.read_bytes(length));
    if (kind == Kind::kString && !is_utf8(text)) return input_.malformed("a string is not UTF-8");
    return push({.kind = kind, .text = std::string(text)});
}

Result<> Machine::push(Node node) {
    if (document_.nodes_.size() >= kNodesMax || stack_.size() >= kNodesMax) {
        return make_error(ErrorCode::kTooLarge, "pickle: more than {} values", kNodesMax);
    }
    stack_.push_back(static_cast<NodeId>(document_.nodes_.size()));
    document_.nodes_.push_back(std::move(node));
    extents_.emplace_back();
    return Ok{};
}

// Pops a value, which must be above the last mark.
Result<NodeId> Machine::pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
        return input_.malformed("a value is popped from an empty stack");
    const NodeId id = stack_.back();
    stack_.pop_back();
    return id;
}

Result<std::size_t> Machine::pop_mark() {
    if (marks_.empty()) return input_.malformed("no MARK");
    const std::size_t begin = marks_.back();
    marks_.pop_back();
    return begin;
}

Result<> Machine::append_child(NodeId parent, NodeId child) {
    if (parent == child) return input_.malformed("a value that contains itself");
    Extent& child_extent = extent(child);
    child_extent.is_finished = true;
    Extent& parent_extent = extent(parent);
    parent_extent.depth = std::max(parent_extent.depth, child_extent.depth + 1);
    parent_extent.logical += child_extent.logical;
    if (parent_extent.depth > kDepthMax)
        return make_error(ErrorCode::kTooLarge, "pickle: nested deeper than {}", kDepthMax);
    if (parent_extent.logical > kLogicalNodesMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "pickle: more than {} values, shared ones counted every time",
            kLogicalNodesMax
        );
    }
    if (++num_children_ > kChildrenMax)
        return make_error(ErrorCode::kTooLarge, "pickle: more than {} children", kChildrenMax);
    node(parent).children.push_back(child);
    return Ok{};
}

// Replaces the topmost values by a container of them.
Result<> Machine::push_container(Kind kind, std::size_t num_children) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + num_children)
        return input_.malformed(
            "{} values are popped, the stack has {}", num_children, stack_.size() - floor
        );
    const std::vector<NodeId> children(
        stack_.end() - static_cast<std::ptrdiff_t>(num_children), stack_.end()
    );
    stack_.resize(stack_.size() - num_children);
    RETURN_IF_ERROR(push({.kind = kind}));
    const NodeId parent = stack_.back();
    for (const NodeId child : children) RETURN_IF_ERROR(append_child(parent, child));
    return Ok{};
}

// Appends the values stack[begin, top) to the list below them.
Result<> Machine::append(std::size_t begin) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (begin <= floor) return input_.malformed("items without a list");
    const NodeId list = stack_[begin - 1];
    if (node(list).kind != Kind::kList || extent(list).is_finished)
        return input_.malformed("items for a value that is not an open list");
    for (std::size_t i = begin; i < stack_.size(); ++i)
        RETURN_IF_ERROR(append_child(list, stack_[i]));
    stack_.resize(begin);
    return Ok{};
}

Result<> Machine::set_items(std::size_t begin) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (begin <= floor) return input_.malformed("items without a dict");
    const NodeId dict = stack_[begin - 1];
    if (node(dict).kind != Kind::kDict || extent(dict).is_finished)
        return input_.malformed("items for a value that is not an open dict");
    if ((stack_.size() - begin) % 2 != 0) return input_.malformed("a key without a value");
    for (std::size_t i = begin; i < stack_.size(); i += 2) {
        const Node& key = node(stack_[i]);
        if (key.kind != Kind::kString) return input_.malformed("a dict key that is not a string");
        key_bytes_ += key.text.size();
        if (key_bytes_ > kMessageBytesMax) {
            return make_error(
                ErrorCode::kTooLarge, "pickle: more than {} bytes of dict keys", kMessageBytesMax
            );
        }
        RETURN_IF_ERROR(append_child(dict, stack_[i]));
        RETURN_IF_ERROR(append_child(dict, stack_[i + 1]));
    }
    stack_.resize(begin);
    return Ok{};
}

Result<> Machine::memoize() {
    if (memo_.size() >= kNodesMax)
        return make_error(ErrorCode::kTooLarge, "pickle: more than {} memo entries", kNodesMax);
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
        return input_.malformed("MEMOIZE with no value");
    memo_.push_back(stack_.back());
    return Ok{};
}

// Like memoize(), with the index that CPython's pickler counts: the memo's next one.
Result<> Machine::put(std::uint64_t index) {
    if (index != memo_.size())
        return input_.malformed("memo entry {}; the next one is {}", index, memo_.size());
    return memoize();
}

Result<> Machine::get(std::uint64_t index) {
    if (index >= memo_.size()) return input_.malformed("memo entry {} of {}", index, memo_.size());
    if (stack_.size() >= kNodesMax)
        return make_error(ErrorCode::kTooLarge, "pickle: more than {} values", kNodesMax);
    stack_.push_back(memo_[static_cast<std::size_t>(index)]);
    return Ok{};
}

Result<> Machine::pop_global_name() {
    ASSIGN_OR_RETURN(const NodeId name_id, pop());
    ASSIGN_OR_RETURN(const NodeId module_id, pop());
    const Node module = node(module_id);
    const Node name = node(name_id);
    if (module.kind != Kind::kString || name.kind != Kind::kString)
        return input_.malformed("a global whose name is not a string");
    return push_global(module.text, name.text);
}

Result<> Machine::push_global(std::string_view module, std::string_view name) {
    const std::optional<KnownGlobal> known = find_global(module, name, channel_);
    if (!known) {
        return make_error(
            ErrorCode::kPermissionDenied,
            "pickle, byte {}: global '{}.{}' is not allowed here",
            input_.position() - 1,
            shown(module),
            shown(name)
        );
    }
    return push({.kind = known->kind, .global = known->global, .text = known->text});
}

Result<> Machine::push_record(Node record, const std::vector<NodeId>& children) {
    RETURN_IF_ERROR(push(std::move(record)));
    const NodeId parent = stack_.back();
    for (const NodeId child : children) RETURN_IF_ERROR(append_child(parent, child));
    return Ok{};
}

// Replaces a persistent id by the storage that it names.
Result<> Machine::push_saved_storage() {
    ASSIGN_OR_RETURN(const NodeId id, pop());
    if (!is_saved_storage(document_, node(id)))
        return input_.malformed("a persistent id that is not a storage of torch.save");
    const std::vector<NodeId> parts = node(id).children;
    return push_record({.kind = Kind::kRecord, .global = Global::kSavedStorage}, parts);
}

Result<> Machine::reduce() {
    ASSIGN_OR_RETURN(const NodeId arguments_id, pop());
    ASSIGN_OR_RETURN(const NodeId callable_id, pop());
    constexpr std::size_t kArgumentsMax = 16;
    const std::size_t num_arguments = node(arguments_id).children.size();
    if (num_arguments > kArgumentsMax)
        return input_.malformed("REDUCE with {} arguments", num_arguments);
    const Node callable = node(callable_id);
    const Node arguments = node(arguments_id);
    if (callable.kind != Kind::kGlobal)
        return make_error(
            ErrorCode::kPermissionDenied,
            "pickle, byte {}: REDUCE of a value that is not a constructor",
            input_.position() - 1
        );
    if (arguments.kind != Kind::kTuple)
        return input_.malformed("REDUCE with arguments that are not a tuple");
    if (callable.global == Global::kSize) return make_shape(arguments);
    if (callable.global == Global::kUnpickleCtypes) return make_nccl_id(arguments);
    if (!is_constructor(callable.global))
        return make_error(
            ErrorCode::kPermissionDenied,
            "pickle, byte {}: REDUCE of a value that is not a constructor",
            input_.position() - 1
        );
    if (const auto why = flaw_of_arguments(document_, callable.global, arguments))
        return input_.malformed("{}", *why);
    if (callable.global == Global::kOrderedDict) return push({.kind = Kind::kDict});
    return push_record(
        {.kind = Kind::kRecord, .global = callable.global, .text = callable.text},
        arguments.children
    );
}

// Makes the shape from torch.Size((2, 3)).
Result<> Machine::make_shape(const Node& arguments) {
    if (arguments.children.size() != 1)
        return input_.malformed("torch.Size with {} arguments", arguments.children.size());
    constexpr std::size_t kDimsMax = 64;  // PyTorch's own
    const std::size_t num_dims = node(arguments.children[0]).children.size();
    if (num_dims > kDimsMax) return input_.malformed("torch.Size of {} dimensions", num_dims);
    const Node dims = node(arguments.children[0]);
    if (dims.kind != Kind::kTuple && dims.kind != Kind::kList)
        return input_.malformed("torch.Size of a value that is not a tuple");
    for (const NodeId dim : dims.children) {
        if (node(dim).kind != Kind::kInt)
            return input_.malformed("torch.Size of values that are not integers");
    }
    return push_record({.kind = Kind::kShape}, dims.children);
}

// Reads _ctypes._unpickle(ncclUniqueId, ({}, 128 bytes)).
Result<> Machine::make_nccl_id(const Node& arguments) {
    if (!is_nccl_id(document_, arguments))
        return input_.malformed("not a unique id of {} bytes", kNcclIdBytes);
    const NodeId bytes = node(arguments.children[1]).children[1];
    return push_record({.kind = Kind::kRecord, .global = Global::kNcclUniqueId}, {bytes});
}

Result<> Machine::make_object() {
    ASSIGN_OR_RETURN(const NodeId arguments_id, pop());
    ASSIGN_OR_RETURN(const NodeId class_id, pop());
    const Node& arguments = node(arguments_id);
    const Global global =
        node(class_id).kind == Kind::kGlobal ? node(class_id).global : Global::kNone;
    if (global != Global::kFlattenedTensorMetadata && global != Global::kLocalSerializedTensor) {
        return make_error(
            ErrorCode::kPermissionDenied,
            "pickle, byte {}: NEWOBJ of a value that is not a known record",
            input_.position() - 1
        );
    }
    if (arguments.kind != Kind::kTuple || !arguments.children.empty())
        return input_.malformed("a record made with arguments");
    return push({.kind = Kind::kRecord, .global = global});
}

// Gives a new record its state, at most once.
Result<> Machine::build() {
    ASSIGN_OR_RETURN(const NodeId state, pop());
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) return input_.malformed("BUILD with no object");
    const NodeId object = stack_.back();
    const Global global = node(object).global;
    // A module's OrderedDict has a state, too: the versions of its layouts.
    const bool is_dict = node(object).kind == Kind::kDict && channel_ == Channel::kSaved;
    const bool takes_state =
        node(object).kind == Kind::kRecord &&
        (global == Global::kFlattenedTensorMetadata || global == Global::kLocalSerializedTensor);
    if (!takes_state && !is_dict)
        return make_error(
            ErrorCode::kPermissionDenied,
            "pickle, byte {}: BUILD of an object that is not a known record",
            input_.position() - 1
        );
    if (extent(object).is_finished || extent(object).has_state)
        return input_.malformed("a record built twice");
    if (node(state).kind != Kind::kDict)
        return input_.malformed("a record's state that is not a dict");
    extent(object).has_state = true;
    return is_dict ? Result<>(Ok{}) : append_child(object, state);
}

}  // namespace pitstop::pickle
