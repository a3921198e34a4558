// A model.safetensors that a test takes apart, changes or makes, and writes.
#pragma once

#include "tests/checkpoint/temp_dir.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::test {

class SafetensorsFile {
  public:
    SafetensorsFile() = default;                       // makes a file without tensors
    explicit SafetensorsFile(const std::string& dir);  // takes the tensors of a directory
    [[nodiscard]] const nlohmann::json& header() const { return header_; }
    [[nodiscard]] nlohmann::json& header() { return header_; }
    [[nodiscard]] std::string bytes_of(const std::string& name) const;
    [[nodiscard]] std::vector<std::int64_t> shape_of(const std::string& name) const;
    void add(
        const std::string& name,
        const std::string& dtype,
        const std::vector<std::int64_t>& shape,
        const std::string& bytes
    );
    // Renames a tensor; its bytes stay where they are.
    void rename(const std::string& name, const std::string& other);
    void write(const TempDir& dir) const;

  private:
    nlohmann::json header_ = nlohmann::json::object();
    std::string data_{};
};

// Widens bf16 to fp32: the same numbers.
[[nodiscard]] std::string widened(const std::string& bf16_bytes);

}  // namespace pitstop::test
