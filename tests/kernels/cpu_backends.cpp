// The CPU, at each instruction level that this machine has.
#include "base/isa.h"
#include "tests/kernels/backend.h"

namespace pitstop::kernels::test {

std::vector<Backend> backends(Order) {
    std::vector<Backend> all;
    for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
        const Ops* const ops = cpu_ops(static_cast<IsaLevel>(level));
        all.push_back({.name = std::string(ops->name.substr(4)), .ops = ops});  // without "cpu "
    }
    return all;
}

}  // namespace pitstop::kernels::test
