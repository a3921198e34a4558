// The choices of linear_tuning.h by product, and their file: lines of text, the last a digest of
// the others. Only for linear_cublas.cpp.
//
// Thread: one at a time. Bounded: kChoicesMax.
#pragma once

#include "base/result.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/tensor.h"

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace pitstop::kernels {

// The properties of a product that determine its algorithm.
struct CublasKey {
    std::int64_t bucket = 0;  // the bucket of M
    std::int64_t N = 0;
    std::int64_t K = 0;
    std::int64_t x_stride = 0;
    std::int64_t w_stride = 0;
    std::int64_t y_stride = 0;
    DType y_dtype = DType::kF32;
    bool has_bias = false;  // whether the epilogue adds a bias
    std::uint32_t y_alignment = 16;
    std::int64_t workspace_bytes = 0;
    auto operator<=>(const CublasKey&) const = default;
};

using CublasChoices = std::map<CublasKey, cublasLtMatmulAlgo_t>;
inline constexpr std::size_t kChoicesMax = 4096;  // shapes of some models times buckets of M

// The file's name and its first lines name the device and the library that were timed.
[[nodiscard]] std::string choices_path(const std::string& directory, const CudaDeviceInfo& device);
// Errors: kNotFound if the file does not exist; kInvalidArgument if it is damaged or was timed on
// another device or library; the message names the line.
[[nodiscard]] Result<CublasChoices> read_choices(
    const std::string& path, const CudaDeviceInfo& device
);
// Writes the whole file or nothing, even if other processes write it. kUnavailable: it
// cannot be written.
[[nodiscard]] Result<> write_choices(
    const std::string& path, const CudaDeviceInfo& device, const CublasChoices& choices
);

}  // namespace pitstop::kernels
