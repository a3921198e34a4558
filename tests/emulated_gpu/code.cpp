#include "tests/emulated_gpu/code.h"

#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace pitstop::emulator {
namespace {

struct Code {
    std::mutex mutex{};
    std::map<std::pair<int, const void*>, std::shared_ptr<Physical>> loaded{};
};
Code& code() {
    static Code* const instance = new Code;
    return *instance;
}

}  // namespace

bool load_code(int gpu, const void* what, CodeOf whose) {
    if (settings().code_bytes == 0) return true;
    Code& all = code();
    const std::scoped_lock lock(all.mutex);
    std::shared_ptr<Physical>& memory = all.loaded[{gpu, what}];
    if (memory == nullptr) {
        const auto bytes = static_cast<std::size_t>(settings().code_bytes);
        const bool is_librarys = whose == CodeOf::kLibrary;
        memory =
            create_own_memory(gpu, bytes, is_librarys ? OwnMemory::kLibrary : OwnMemory::kCode);
    }
    return memory != nullptr;
}

}  // namespace pitstop::emulator
