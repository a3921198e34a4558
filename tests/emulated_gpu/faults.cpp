#include "tests/emulated_gpu/faults.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/errors.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
#include <dlfcn.h>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <string_view>
#include <vector>

namespace pitstop::emulator {
namespace {

struct Order {
    int gpu = -1;  // -1: any GPU
    std::string function{};
    std::int64_t number = 0;
    Fault fault{};
};

struct Orders {
    std::mutex mutex{};
    std::vector<Order> faults{};
    std::int64_t memory = std::numeric_limits<std::int64_t>::max();
    int memory_gpu = -1;
    std::map<std::string, std::int64_t> num_calls{};
};

[[noreturn]] void refuse(const std::string& text) {
    fail(
        "PITSTOP_EMULATED_FAULTS takes [gpuK/]FUNCTION:N=ERROR, [gpuK/]kernel:N=hang, copy:N=hang "
        "and "
        "[gpuK/]memory=BYTES, not '" +
        text + "'"
    );
}

std::int64_t number_in(const std::string& digits, const std::string& text) {
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos ||
        digits.size() > 18)
        refuse(text);
    return std::stoll(digits);
}

// Returns whether calls of that name are counted: an order about another name would never take
// effect, and its test would pass without testing anything.
bool is_counted(const std::string& name) {
    // Templates and functions of other libraries are not among this library's symbols.
    constexpr std::string_view kOthers[] = {
        "kernel",
        "copy",
        "cublasLtMatmul",
        "cudaFuncSetAttribute",
        "cudaLaunchKernelEx",
        "ncclAllGather",
        "ncclAllReduce",
        "ncclBroadcast",
        "ncclCommAbort",
        "ncclCommCount",
        "ncclCommCuDevice",
        "ncclCommDeregister",
        "ncclCommDestroy",
        "ncclCommFinalize",
        "ncclCommGetAsyncError",
        "ncclCommInitRank",
        "ncclCommInitRankConfig",
        "ncclCommRegister",
        "ncclCommUserRank",
        "ncclGetUniqueId",
        "ncclGetVersion",
        "ncclGroupEnd",
        "ncclGroupStart",
        "ncclMemAlloc",
        "ncclMemFree",
    };
    if (std::ranges::find(kOthers, name) != std::end(kOthers)) return true;
    if (!name.starts_with("cu")) return false;
    Dl_info own{};
    if (::dladdr(reinterpret_cast<const void*>(&fault_at), &own) == 0) fail("dladdr");
    void* const library = ::dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return library != nullptr && ::dlsym(library, name.c_str()) != nullptr;
}

void read(const std::string& text, Orders& orders) {
    std::string rest = text;
    Order order;
    if (rest.starts_with("gpu") && rest.find('/') != std::string::npos) {
        order.gpu = static_cast<int>(number_in(rest.substr(3, rest.find('/') - 3), text));
        rest = rest.substr(rest.find('/') + 1);
    }
    const std::size_t equals = rest.find('=');
    if (equals == std::string::npos) refuse(text);
    const std::string what = rest.substr(equals + 1);
    const std::string where = rest.substr(0, equals);
    if (where == "memory") {
        orders.memory = number_in(what, text);
        orders.memory_gpu = order.gpu;
        return;
    }
    const std::size_t colon = where.find(':');
    if (colon == std::string::npos) refuse(text);
    order.function = where.substr(0, colon);
    if (!is_counted(order.function))
        fail(
            "PITSTOP_EMULATED_FAULTS: no calls of '" + order.function + "' are counted, in '" +
            text + "'"
        );
    order.number = number_in(where.substr(colon + 1), text);
    if (what == "hang" && (order.function == "kernel" || order.function == "copy")) {
        order.fault.kind = FaultKind::kHang;
    } else if (const std::optional<int> error = error_named(what);
               error && (*error < kNcclErrors || order.function.starts_with("nccl"))) {
        order.fault.error = *error;
    } else {
        refuse(text);
    }
    orders.faults.push_back(order);
}

Orders& orders() {
    static Orders* const read_once = [] {
        auto* const made = new Orders;
        std::istringstream list(settings().faults);
        for (std::string text; std::getline(list, text, ',');) read(text, *made);
        return made;
    }();
    return *read_once;
}

}  // namespace

std::optional<Fault> fault_at(const std::string& function, int gpu) {
    Orders& all = orders();
    const std::scoped_lock lock(all.mutex);
    const std::int64_t number = ++all.num_calls[function];
    for (const Order& order : all.faults) {
        const bool is_here = order.gpu < 0 || order.gpu == gpu;
        if (is_here && order.function == function && order.number == number) return order.fault;
    }
    return std::nullopt;
}

void fail_call(const std::string& function, std::int64_t number, int error) {
    if (!is_counted(function)) fail("no calls of '" + function + "' are counted");
    Orders& all = orders();
    const std::scoped_lock lock(all.mutex);
    Order& order = all.faults.emplace_back();
    order.function = function;
    order.number = all.num_calls[function] + number;
    order.fault.error = error;
}

std::map<std::string, std::int64_t> all_num_calls() {
    Orders& all = orders();
    const std::scoped_lock lock(all.mutex);
    return all.num_calls;
}

std::int64_t num_calls(const std::string& function) {
    Orders& all = orders();
    const std::scoped_lock lock(all.mutex);
    const auto found = all.num_calls.find(function);
    return found == all.num_calls.end() ? 0 : found->second;
}

std::int64_t memory_limit(int gpu) {
    const Orders& all = orders();
    return all.memory_gpu < 0 || all.memory_gpu == gpu ? all.memory
                                                       : std::numeric_limits<std::int64_t>::max();
}

}  // namespace pitstop::emulator
