// The products of a block: y = x times one to four weights that share x. A block names the weights
// and the buffers of a product once; running the product and choosing how a GPU multiplies it
// (product_tuning.h) need nothing else.
#pragma once

#include "kernels/linear.h"
#include "kernels/tensor.h"
#include "tp_worker/weights/bound_weights.h"
#include "tp_worker/weights/slot.h"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace pitstop::tp_worker {

struct Trunk;

struct Product {
    struct Part {
        WeightId w{};
        std::optional<WeightId> bias{};
        kernels::ActView y{};  // [rows_max, N]
    };
    kernels::ActView x{};       // [rows_max, K]
    std::vector<Part> parts{};  // 1 to LinearArgs::kPartsMax
    bool is_summed = false;     // y is summed over the ranks afterwards
};

// The arguments of the product op for the first `num_rows` rows of the buffers.
class ProductArgs {
  public:
    ProductArgs(
        const Product& product,
        const Trunk& trunk,
        const BoundWeights& weights,
        std::int64_t num_rows
    );
    ProductArgs(const ProductArgs&) = delete;  // args_ points into the object
    ProductArgs& operator=(const ProductArgs&) = delete;

    [[nodiscard]] const kernels::LinearArgs& args() const { return args_; }

  private:
    std::array<kernels::LinearPart, kernels::LinearArgs::kPartsMax> parts_{};
    kernels::LinearArgs args_{};
};

}  // namespace pitstop::tp_worker
