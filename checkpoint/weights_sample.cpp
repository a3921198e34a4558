#include "checkpoint/weights_sample.h"

#include "base/digest.h"
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::checkpoint {

Result<std::string> sample_weights(const std::string& directory) {
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(directory));
    std::vector<const StoredTensor*> tensors;
    for (const StoredTensor& tensor : checkpoint.tensors()) tensors.push_back(&tensor);
    std::ranges::sort(tensors, {}, [](const StoredTensor* tensor) -> const std::string& {
        return tensor->spec.name;
    });
    const std::size_t step = (tensors.size() + kTensorsSampledMax - 1) / kTensorsSampledMax;
    std::string text = fmt::format("{} tensors\n", tensors.size());
    for (std::size_t i = 0; i < tensors.size(); i += step) {
        const StoredTensor& tensor = *tensors[i];
        const auto& [name, dtype, shape] = tensor.spec;
        text += fmt::format("{} {} {}\n", name, name_of(dtype), text_of(shape));
        const std::int64_t num = std::min(static_cast<std::int64_t>(kSampleBytes), tensor.bytes);
        for (const std::int64_t begin : {std::int64_t{0}, (tensor.bytes - num) / 2}) {
            std::array<std::byte, kSampleBytes> sample{};
            const std::span piece = std::span(sample).first(static_cast<std::size_t>(num));
            RETURN_IF_ERROR(checkpoint.read(tensor, begin, piece));
            text.append(reinterpret_cast<const char*>(sample.data()), piece.size());
        }
    }
    return to_hex(digest_of(text));
}

}  // namespace pitstop::checkpoint
