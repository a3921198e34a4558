// The pickle reader on arbitrary bytes, with each channel's limits. A resulting value is walked
// whole, as its users do. Corpus: tests/data/pickle.
#include "pickle/reader.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

using namespace pitstop::pickle;  // NOLINT: a program of two functions

void read_as(Channel channel, std::span<const std::byte> bytes) {
    const pitstop::Result<Document> document = read(bytes, channel);
    if (!document) {
        if (document.error().message.empty()) std::abort();
        return;
    }
    std::vector<const Node*> open{&document->root()};
    std::size_t num_nodes = 0;
    while (!open.empty()) {
        const Node& node = *open.back();
        open.pop_back();
        if (++num_nodes > kLogicalNodesMax) std::abort();  // the reader promises fewer
        if (node.kind == Kind::kDict && node.children.size() % 2 != 0) std::abort();
        for (std::size_t i = 0; i < node.children.size(); ++i)
            open.push_back(&document->child(node, i));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    for (const Channel channel :
         {Channel::kHandle,
          Channel::kBucket,
          Channel::kTensors,
          Channel::kNcclId,
          Channel::kSaved}) {
        read_as(channel, std::as_bytes(std::span(data, size)));
    }
    return 0;
}
