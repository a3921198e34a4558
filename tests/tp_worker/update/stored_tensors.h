// The tensors of a test's model, as a sender would have them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

using Bytes = std::vector<std::uint8_t>;

struct StoredTensor {
    std::vector<std::int64_t> shape{};
    Bytes bytes{};
};

// Returns the tensors by name, as in the model's one safetensors file: bf16.
[[nodiscard]] std::map<std::string, StoredTensor> tensors_of(const std::string& model);

}  // namespace pitstop::tp_worker
