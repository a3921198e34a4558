#include "pickle/reader.h"

#include "pickle/machine.h"

namespace pitstop::pickle {

const Node* Document::find(const Node& dict, std::string_view key) const {
    if (dict.kind == Kind::kRecord && dict.children.size() == 1 &&
        child(dict, 0).kind == Kind::kDict) {
        return find(child(dict, 0), key);
    }
    if (dict.kind != Kind::kDict) return nullptr;
    for (std::size_t i = 0; i + 1 < dict.children.size(); i += 2) {
        if (child(dict, i).text == key) return &child(dict, i + 1);
    }
    return nullptr;
}

Result<Document> read(std::span<const std::byte> message, Channel channel) {
    return Machine(message, channel).run();
}

}  // namespace pitstop::pickle
