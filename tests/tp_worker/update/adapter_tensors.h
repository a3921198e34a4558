// The tensors of an adapter's file (adapted_fixture.h), for tests that send other ones.
#pragma once

#include "messages/weights.h"
#include "tests/tp_worker/update/adapted_fixture.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// The tensors of a file, as fp32.
struct Tensor {
    std::vector<std::int64_t> shape{};
    std::vector<float> values{};
};
using Tensors = std::map<std::string, Tensor>;

inline const std::string kPrefix = "base_model.model.";

inline Tensors tensors_of(const std::string& name) {
    std::ifstream file(adapter_dir(name) + "/adapter_model.safetensors", std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, all.data(), sizeof header_bytes);
    const Json header = parse_json(all.substr(8, header_bytes));
    Tensors tensors;
    for (const auto& [key, entry] : header.items()) {
        if (key == "__metadata__") continue;
        Tensor tensor{.shape = entry["shape"].get<std::vector<std::int64_t>>()};
        const auto begin = entry["data_offsets"][0].get<std::size_t>();
        const auto end = entry["data_offsets"][1].get<std::size_t>();
        tensor.values.resize((end - begin) / sizeof(float));
        std::memcpy(tensor.values.data(), all.data() + 8 + header_bytes + begin, end - begin);
        tensors[key.substr(kPrefix.size())] = std::move(tensor);
    }
    return tensors;
}

inline std::vector<std::uint8_t> bytes_of(const std::vector<float>& values) {
    std::vector<std::uint8_t> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

// The tensors in the call itself.
inline messages::UpdateSpec from_call(const Tensors& tensors) {
    messages::UpdateSpec spec;
    spec.adapter = "one";
    spec.source.kind = messages::SourceKind::kTensors;
    spec.source.format = messages::TensorFormat::kFlattened;
    messages::RankPayload payload;
    for (const auto& [name, tensor] : tensors) {
        spec.source.tensors.push_back({.name = name, .dtype = "F32", .shape = tensor.shape});
        const std::vector<std::uint8_t> bytes = bytes_of(tensor.values);
        payload.data.values.insert(payload.data.values.end(), bytes.begin(), bytes.end());
    }
    spec.source.payloads.push_back(std::move(payload));
    return spec;
}

}  // namespace pitstop::tp_worker
