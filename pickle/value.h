// Plain values, and records of a few known constructors, from a PyTorch peer's pickle. Nothing in
// the pickle was ever called.
//
// Values are in one vector and refer to each other by index: sharing costs nothing, there is no
// cycle, and neither walking nor destroying them recurses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::pickle {

enum class NodeId : std::uint32_t {};

enum class Kind : std::uint8_t {
    kNone,
    kBool,    // integer: 0 or 1
    kInt,     // integer
    kString,  // text: UTF-8
    kBytes,   // text: raw
    kTuple,   // children
    kList,    // children
    kDict,    // children: key, value, key, value; keys are strings
    kShape,   // children: ints (torch.Size)
    kDType,   // text: "bfloat16"
    kGlobal,  // global: a class or a function, as a label
    // global: its constructor; children: its arguments, in order, or for an object with a
    // state one dict
    kRecord,
};

// The known globals: each an exact (module, name) pair, or a few pairs with one meaning.
enum class Global : std::uint8_t {
    kNone,
    kSize,
    kTensorClass,
    kStorageClass,
    kOrderedDict,
    kRebuildCudaTensor,       // 15 arguments
    kRebuildTensor,           // class, storage, (offset, shape, stride, requires_grad)
    kRebuildTypedStorage,     // untyped storage, dtype
    kRebuildStorageFilename,  // class, manager, handle, bytes[, dtype]
    kException,               // text of the node: the class's name
    kFlattenedTensorMetadata,
    kLocalSerializedTensor,
    kUnpickleCtypes,
    kNcclUniqueId,
    kTypedStorageClass,  // text of the node: "BFloat16Storage"
    kSavedStorage,       // a persistent id: "storage", class, key, location, number of elements
    kRebuildTensorV2,    // kSavedStorage, offset, shape, stride, requires_grad, hooks[, metadata]
    kRebuildParameter,   // tensor, requires_grad, hooks
};

struct Node {
    Kind kind = Kind::kNone;
    Global global = Global::kNone;
    std::int64_t integer = 0;
    std::string text{};
    std::vector<NodeId> children{};
};

class Document {
  public:
    [[nodiscard]] const Node& root() const { return (*this)[root_]; }
    [[nodiscard]] const Node& operator[](NodeId id) const {
        return nodes_[static_cast<std::size_t>(id)];
    }

    [[nodiscard]] std::span<const Node> nodes() const { return nodes_; }
    // Returns the value of a dict's key, or null. For a record with a state, looks in that state.
    [[nodiscard]] const Node* find(const Node& dict, std::string_view key) const;
    // Returns child `index`. REQUIRES: the node has that many children.
    [[nodiscard]] const Node& child(const Node& node, std::size_t index) const {
        return (*this)[node.children[index]];
    }

  private:
    friend class Machine;
    std::vector<Node> nodes_{};
    NodeId root_{};
};

}  // namespace pitstop::pickle
