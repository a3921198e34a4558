// Keeps the choices of linear_tuning.h by product, and their file: lines of text, the last a digest
// of the others. For linear_cublas.cpp alone.
//
// Thread: one at a time. Bounded: kChoicesMax.
#pragma once

#include "base/result.h"
#include "kernels/cuda_device.h"
#include "kernels/tensor.h"

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace pitstop::kernels {

// The choice of an algorithm depends on these.
struct CublasKey {
    std::int64_t bucket = 0;  // the one that M is in
    std::int64_t N = 0;
    std::int64_t K = 0;
    std::int64_t x_stride = 0;
    std::int64_t w_stride = 0;
    std::int64_t y_stride = 0;
    DType y_dtype = DType::kF32;
    bool has_bias = false;  // whether the epilogue adds one
    std::uint32_t y_alignment = 16;
    std::int64_t workspace_bytes = 0;
    auto operator<=>(const CublasKey&) const = default;
};

using CublasChoices = std::map<CublasKey, cublasLtMatmulAlgo_t>;
inline constexpr std::size_t kChoicesMax = 4096;  // shapes of some models times buckets of M

// A file's name says what it was timed on, and so do its first lines.
[[nodiscard]] std::string choices_path(const std::string& directory, const CudaDeviceInfo& device);
// Errors: kNotFound, there is none; kInvalidArgument, it is another device's, or damaged; the
// message says which line.
[[nodiscard]] Result<CublasChoices> read_choices(
    const std::string& path, const CudaDeviceInfo& device
);
// Writes all of it or nothing, whoever else writes it. kUnavailable: it cannot be written.
[[nodiscard]] Result<> write_choices(
    const std::string& path, const CudaDeviceInfo& device, const CublasChoices& choices
);

}  // namespace pitstop::kernels
