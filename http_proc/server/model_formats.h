// The formats to look for in the output of chats: those that the flags name, or those that the chat
// template of the present tree has. A server outlives its tree, and the next tree may have another
// model.
//
// Thread: the server's loop. Must outlive the trees that it follows.
#pragma once

#include "http_proc/format/thinking.h"
#include "http_proc/format/tool_formats.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

class Tree;

struct OutputFormats {
    std::optional<ToolFormat> calls{};         // null: tool calls remain text
    std::optional<ThinkingFormat> thinking{};  // null: thinking remains text
};

// Returns the chat template in a tokenizer_config.json; empty if there is none.
[[nodiscard]] std::string chat_template_in(std::string_view tokenizer_config);

class ModelFormats {
  public:
    struct Args {
        OutputFormats named{};  // by flags
        // Whether the chat template decides instead.
        bool finds_calls = false;
        bool finds_thinking = false;
    };
    explicit ModelFormats(const Args& args) : args_(args), formats_(args.named) {}

    [[nodiscard]] const OutputFormats& get() const { return formats_; }

    // Returns whether the formats are those of this tree's model.
    [[nodiscard]] bool are_of(const Tree& tree) const;
    // Sets the formats from the chat template of a tree, Tree::number().
    void find(std::uint64_t tree, std::string_view chat_template);
    // Asks for the chat template of a tree that replaced the last one. Until it answers, are_of()
    // is false. A call that failed is repeated by the next follow().
    void follow(Tree& tree);

  private:
    Args args_;
    OutputFormats formats_;
    std::uint64_t tree_ = 0;   // the Tree::number() of formats_
    std::uint64_t asked_ = 0;  // the Tree::number() that was asked and has not answered; 0: none
};

}  // namespace pitstop::http
