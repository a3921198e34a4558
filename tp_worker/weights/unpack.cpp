#include "tp_worker/weights/unpack.h"

#include <utility>

namespace pitstop::tp_worker {
namespace {

TensorBytes from_byte(const TensorBytes& whole, std::int64_t begin) {
    TensorBytes part = whole;
    if (part.data != nullptr) part.data += begin;
    if (part.read) {
        part.read = [&whole, begin](std::int64_t at, std::span<std::byte> out) {
            return whole.read(begin + at, out);
        };
    }
    return part;
}

}  // namespace

std::vector<UnpackedSpec> unpacked(const WeightLayout& layout, const checkpoint::TensorSpec& spec) {
    const WeightLayout::Pack* const pack = layout.find_pack(spec.name);
    std::vector<UnpackedSpec> parts;
    if (pack == nullptr || pack->shape != spec.shape) return parts;
    std::int64_t begin = 0;
    for (const std::size_t index : pack->tensors) {
        const WeightTensor& tensor = layout.tensors()[index];
        const std::int64_t bytes =
            tensor.whole_rows * tensor.whole_cols * checkpoint::bytes_of(spec.dtype);
        parts.push_back(
            {.spec = {.name = tensor.name, .dtype = spec.dtype, .shape = tensor.shape},
             .begin = begin,
             .bytes = bytes}
        );
        begin += bytes;
    }
    return parts;
}

std::vector<Incoming> unpacked(const WeightLayout& layout, std::span<const Incoming> tensors) {
    std::vector<Incoming> apart;
    for (const Incoming& incoming : tensors) {
        std::vector<UnpackedSpec> parts = unpacked(layout, incoming.spec);
        if (parts.empty()) apart.push_back(incoming);
        for (UnpackedSpec& part : parts) {
            apart.push_back(
                {.spec = std::move(part.spec), .bytes = from_byte(incoming.bytes, part.begin)}
            );
        }
    }
    return apart;
}

}  // namespace pitstop::tp_worker
