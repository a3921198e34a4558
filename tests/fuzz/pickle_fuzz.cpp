// The pickle reader on arbitrary bytes: the first one chooses the channel. A value that comes out
// is walked whole, as its users do. Corpus: tests/data/pickle, which has no such first byte and
// needs none.
#include "pickle/reader.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace pitstop::pickle;
    if (size == 0) return 0;
    const auto channel = static_cast<Channel>(data[0] % 4);
    // A corpus file begins with PROTO; the reader is to see it.
    const std::size_t skip = data[0] == 0x80 ? 0 : 1;
    const pitstop::Result<Document> document =
        read(std::as_bytes(std::span(data + skip, size - skip)), channel);
    if (!document) return document.error().message.empty() ? std::abort(), 0 : 0;
    std::vector<const Node*> open{&document->root()};
    std::size_t num_nodes = 0;
    while (!open.empty()) {
        const Node& node = *open.back();
        open.pop_back();
        if (++num_nodes > kLogicalNodesMax) std::abort();  // the reader has promised fewer
        if (node.kind == Kind::kDict && node.children.size() % 2 != 0) std::abort();
        for (std::size_t i = 0; i < node.children.size(); ++i)
            open.push_back(&document->child(node, i));
    }
    return 0;
}
