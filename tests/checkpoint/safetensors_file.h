// Reads a model.safetensors of a test's own directory apart, changes it, and writes it again.
#pragma once

#include "tests/checkpoint/temp_dir.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::test {

class SafetensorsFile {
  public:
    explicit SafetensorsFile(const TempDir& dir);
    [[nodiscard]] std::string bytes_of(const std::string& name) const;
    [[nodiscard]] std::vector<std::int64_t> shape_of(const std::string& name) const;
    void add(
        const std::string& name,
        const std::string& dtype,
        const std::vector<std::int64_t>& shape,
        const std::string& bytes
    );
    // Under another name; its bytes stay where they are.
    void rename(const std::string& name, const std::string& other);
    void write() const;

  private:
    const TempDir& dir_;
    nlohmann::json header_{};
    std::string data_{};
};

// Widens bf16 to fp32: the same numbers.
[[nodiscard]] std::string widened(const std::string& bf16_bytes);

}  // namespace pitstop::test
