// Memory in which blocks compute. Blocks request buffers by name. All blocks that request a name
// share one buffer, as large as the largest of them needs, because blocks run one after another.
//
// Every block requests the same buffers twice: before place() the requests are counted and return
// null, after it they return the addresses.
//
// Owns:   nothing; the model owns the memory.
// Thread: one.
#pragma once

#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "tp_worker/blocks/model_sizes.h"
#include "tp_worker/device/device.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pitstop::tp_worker {

class Scratch {
  public:
    struct Args {
        const Device& device;
        ModelSizes sizes{};
        Compute compute = Compute::kBf16;
    };
    explicit Scratch(const Args& args) : args_(args) {}

    [[nodiscard]] const ModelSizes& sizes() const { return args_.sizes; }
    [[nodiscard]] const kernels::Ops& ops() const { return args_.device.ops(); }
    [[nodiscard]] bool is_cuda() const { return args_.device.is_cuda(); }
    // The type of a product's inputs, and of outputs that are not summed over the ranks.
    [[nodiscard]] kernels::DType act_dtype() const { return tp_worker::act_dtype(args_.compute); }
    [[nodiscard]] kernels::DType product_dtype() const;

    [[nodiscard]] View2<float> floats(std::string_view name, std::int64_t rows, std::int64_t cols);
    [[nodiscard]] kernels::ActView acts(
        std::string_view name, kernels::DType dtype, std::int64_t rows, std::int64_t cols
    );
    [[nodiscard]] kernels::Workspace workspace(std::string_view name, std::int64_t bytes);
    template <class T>
    [[nodiscard]] std::span<T> array(std::string_view name, std::int64_t num) {
        // NOLINTNEXTLINE(bugprone-sizeof-expression): T may be a pointer
        const std::int64_t bytes = num * std::int64_t{sizeof(T)};
        return {reinterpret_cast<T*>(take(name, bytes).data), static_cast<std::size_t>(num)};
    }
    // Memory that is zero at the start, for ops that leave it zero.
    [[nodiscard]] void* zeros(std::string_view name, std::int64_t bytes);
    // A table that fill() computes once, row by row. Blocks that request the same name share the
    // table, so a name must determine its contents.
    using FillRow = std::function<void(std::int64_t row, std::span<float> values)>;
    [[nodiscard]] View2<float> table(
        std::string_view name, std::int64_t rows, std::int64_t cols, FillRow fill_row
    );

    [[nodiscard]] std::int64_t bytes() const;
    // REQUIRES: `memory` has bytes(), 256-byte aligned, and every buffer was requested once.
    void place(std::byte* memory);
    // Writes zeros and tables, after all blocks have made their second requests. On a GPU,
    // returns when the tables are written.
    void fill() const;

  private:
    struct Buffer {
        std::int64_t bytes = 0;
        std::byte* data = nullptr;
        bool is_zero = false;
    };
    struct Table {
        View2<float> view{};
        FillRow fill_row{};
    };
    Buffer& take(std::string_view name, std::int64_t bytes);
    void fill(const Table& table) const;

    Args args_;
    std::vector<Buffer> buffers_{};  // in the order of the requests
    std::unordered_map<std::string, std::size_t> by_name_{};
    std::unordered_map<std::string, Table> tables_{};
    bool is_placed_ = false;
};

}  // namespace pitstop::tp_worker
