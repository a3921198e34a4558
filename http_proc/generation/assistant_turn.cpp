#include "http_proc/generation/assistant_turn.h"

#include "http_proc/server/tree.h"

#include <utility>

namespace pitstop::http {

ToolCallParser::Part AssistantTurn::append(messages::OutputChunk& chunk) {
    if (!parser_) return {.text = std::move(chunk.text)};
    if (is_over_) return {};
    if (!chunk.text.empty()) chunk.text.insert(0, std::exchange(opening_, {}));
    ToolCallParser::Part part = parser_->append(chunk.text);
    if (chunk.finish) part.append(parser_->finish());
    if (calls_ == Calls::kOne && !part.calls.empty()) {
        is_over_ = true;
        part.text.resize(part.places.front());
        part.calls.resize(1);
        part.places.resize(1);
    }
    return part;
}

std::string AssistantTurn::call_id(std::string_view prefix) const {
    // Mistral's template refuses ids of any other length.
    if (format_ == ToolFormat::kMistral) return Tree::random_id().substr(0, 9);
    return std::string(prefix) + Tree::random_id().substr(0, 24);
}

}  // namespace pitstop::http
