// The tensors of a test's model, as a sender has them.
#pragma once

#include "tests/tp_worker/test_replica.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

using Bytes = std::vector<std::uint8_t>;

struct StoredTensor {
    std::vector<std::int64_t> shape{};
    Bytes bytes{};
};

// By name, as the model's one safetensors file has them: bf16.
inline std::map<std::string, StoredTensor> tensors_of(const std::string& model) {
    std::ifstream file(model_dir(model) + "/model.safetensors", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::uint64_t header_len = 0;
    std::memcpy(&header_len, bytes.data(), 8);
    const auto header = nlohmann::json::parse(bytes.substr(8, header_len));
    const auto at = [&](const nlohmann::json& offset) {
        return bytes.begin() +
               static_cast<std::ptrdiff_t>(8 + header_len + offset.get<std::uint64_t>());
    };
    std::map<std::string, StoredTensor> tensors;
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") continue;
        const nlohmann::json& offsets = entry["data_offsets"];
        tensors[name] = {entry["shape"], Bytes(at(offsets[0]), at(offsets[1]))};
    }
    return tensors;
}

}  // namespace pitstop::tp_worker
