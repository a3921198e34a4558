// The pieces of an assistant's turn: text, thinking and tool calls, in the order in which the model
// wrote them. Parsers of outputs make pieces; each dialect writes them in its own shape.
//
//   TurnPieces pieces = turn.append(chunk);
//   for (const TurnPiece& piece : pieces.list()) ...     // a stream: call by call, in pieces
//   for (const TurnItem& item : whole_items(pieces)) ... // a whole answer
//
// Bounded: by the length of the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct ToolCall {
    std::string name{};
    std::string arguments{};  // a JSON object; members in the model's order
    std::string id{};         // as the model wrote it; empty: the format has no ids

    friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct TurnPiece {
    //   kText, kThinking  a part of the text or of the thinking
    //   kCall             a call begins: `text` is its name
    //   kArguments        a part of the open call's arguments; it may be empty
    //   kCallEnd          the open call is complete
    //   kCallBroken       the open call is malformed or cut off: its arguments are incomplete JSON
    enum class Kind : std::uint8_t { kText, kThinking, kCall, kArguments, kCallEnd, kCallBroken };

    Kind kind{};
    std::string text{};
    std::string id{};  // of kCall; see ToolCall::id
    // The output from which a call's piece was read. If the call turns out to be broken, an answer
    // that is not streamed has this output as text.
    std::string written{};

    friend bool operator==(const TurnPiece&, const TurnPiece&) = default;
};

class TurnPieces {
  public:
    // Joins adjacent pieces of text, thinking or arguments, and skips empty ones.
    void add_text(std::string_view text) { add_run(TurnPiece::Kind::kText, text, {}); }
    void add_thinking(std::string_view text) { add_run(TurnPiece::Kind::kThinking, text, {}); }
    void begin_call(std::string name, std::string id, std::string written);
    void add_arguments(std::string_view arguments, std::string_view written) {
        add_run(TurnPiece::Kind::kArguments, arguments, written);
    }
    void end_call(std::string_view written);
    void break_call(std::string_view written);
    void add(TurnPiece piece);
    void append(TurnPieces next);
    // Keeps the first `count` pieces.
    void resize(std::size_t count) { list_.resize(count); }

    [[nodiscard]] const std::vector<TurnPiece>& list() const { return list_; }
    [[nodiscard]] bool empty() const { return list_.empty(); }

    friend bool operator==(const TurnPieces&, const TurnPieces&) = default;

  private:
    void add_run(TurnPiece::Kind kind, std::string_view text, std::string_view written);

    std::vector<TurnPiece> list_{};
};

// A part of a whole turn.
struct TurnItem {
    enum class Kind : std::uint8_t { kText, kThinking, kCall };

    Kind kind{};
    std::string text{};  // of kText and kThinking
    ToolCall call{};     // of kCall

    friend bool operator==(const TurnItem&, const TurnItem&) = default;
};

// Returns the items of a turn that has ended, in order. A broken call becomes the text it was.
[[nodiscard]] std::vector<TurnItem> whole_items(const TurnPieces& pieces);

}  // namespace pitstop::http
