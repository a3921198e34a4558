// The stack machine behind read(): runs one opcode at a time over one message.
//
// A container accepts children only until it becomes a child itself. So no cycle is possible, and a
// child's depth and size are final when it is added.
#pragma once

#include "base/result.h"
#include "pickle/input.h"
#include "pickle/reader.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace pitstop::pickle {

class Machine {
  public:
    Machine(std::span<const std::byte> message, Channel channel)
        : input_(message), channel_(channel) {}

    Result<Document> run();

  private:
    // Kept for each node while reading.
    struct Extent {
        std::uint32_t depth = 1;    // of the value as a tree
        std::uint64_t logical = 1;  // nodes of that tree, shared ones counted every time
        bool is_finished = false;   // became a child of another container
        bool has_state = false;     // BUILD was run
    };

    Result<> step(std::uint8_t opcode);            // plain values; calls the next function for:
    Result<> step_container(std::uint8_t opcode);  // containers, the memo, globals and objects
    Result<> step_saved(std::uint8_t opcode);      // what only protocol 2 has: for kSaved
    Result<> read_int(std::size_t num_bytes, bool is_signed);
    Result<> read_text(std::size_t length_bytes, Kind kind);

    Result<> push(Node node);
    Result<> push_container(Kind kind, std::size_t num_children);
    Result<NodeId> pop();
    Result<std::size_t> pop_mark();
    Result<> append_child(NodeId parent, NodeId child);
    Result<> append(std::size_t begin);
    Result<> set_items(std::size_t begin);
    Result<> memoize();
    Result<> put(std::uint64_t index);
    Result<> get(std::uint64_t index);

    Result<> pop_global_name();
    Result<> push_global(std::string_view module, std::string_view name);
    Result<> push_record(Node record, const std::vector<NodeId>& children);
    Result<> push_saved_storage();
    Result<> reduce();
    Result<> make_object();
    Result<> build();
    Result<> make_shape(const Node& arguments);
    Result<> make_nccl_id(const Node& arguments);

    [[nodiscard]] Node& node(NodeId id) { return document_.nodes_[static_cast<std::size_t>(id)]; }
    [[nodiscard]] Error denied(std::uint8_t opcode) const;
    [[nodiscard]] Extent& extent(NodeId id) { return extents_[static_cast<std::size_t>(id)]; }

    Input input_;
    Channel channel_;
    Document document_{};
    std::vector<Extent> extents_{};
    std::vector<NodeId> stack_{};
    std::vector<std::size_t> marks_{};
    std::vector<NodeId> memo_{};
    std::size_t num_children_ = 0;
    std::size_t key_bytes_ = 0;  // of all dicts, shared keys counted every time
};

}  // namespace pitstop::pickle
