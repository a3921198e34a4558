#include "tests/emulated_gpu/machine.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/random.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace pitstop::emulator {
namespace {

constexpr int kEntriesMax = 1024;  // processes times the GPUs that each uses

struct Entry {
    std::int64_t pid;  // 0: the entry is unused
    std::int64_t start_time;
    std::int64_t gpu;
    std::int64_t bytes;
};

struct MachineFile {
    Entry entries[kEntriesMax];
};

class Machine {
  public:
    static Machine& shared() {
        static Machine* const machine = new Machine;
        return *machine;
    }

    // Calls f(mine) with this process's entry for a GPU, with the file locked and dead processes
    // removed. `gpu`: its number on the machine.
    template <class F>
    auto locked(int gpu, F f) {
        const std::scoped_lock lock(mutex_);
        if (flock(fd_, LOCK_EX) != 0) fail("flock of the machine's file");
        Entry* mine = nullptr;
        Entry* unused = nullptr;
        const std::int64_t pid = getpid();
        for (Entry& entry : file_->entries) {
            if (entry.pid != 0 && entry.pid != pid && start_time_of(entry.pid) != entry.start_time)
                entry = {};
            if (entry.pid == pid && entry.start_time != start_time_) entry = {};
            if (entry.pid == pid && entry.gpu == gpu) mine = &entry;
            if (entry.pid == 0 && unused == nullptr) unused = &entry;
        }
        if (mine == nullptr) {
            if (unused == nullptr) fail("more processes on the machine than its file has room for");
            mine = unused;
            *mine = {pid, start_time_, gpu, 0};
        }
        auto result = f(*mine);
        if (mine->bytes == 0) *mine = {};
        flock(fd_, LOCK_UN);
        return result;
    }

    [[nodiscard]] std::vector<MemoryUser> users(int gpu) const {
        std::vector<MemoryUser> found;
        for (const Entry& entry : file_->entries) {
            if (entry.pid != 0 && entry.gpu == gpu && entry.bytes > 0)
                found.push_back({entry.pid, entry.bytes});
        }
        return found;
    }
    [[nodiscard]] std::int64_t used(int gpu) const {
        std::int64_t bytes = 0;
        for (const Entry& entry : file_->entries) {
            if (entry.pid != 0 && entry.gpu == gpu) bytes += entry.bytes;
        }
        return bytes;
    }

  private:
    Machine() : start_time_(start_time_of(getpid())) {
        const std::string& path = settings().machine;
        fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd_ < 0 || ::ftruncate(fd_, sizeof(MachineFile)) != 0)
            fail("cannot open the machine's file " + path);
        void* const mapped =
            ::mmap(nullptr, sizeof(MachineFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (mapped == MAP_FAILED) fail("cannot map the machine's file " + path);
        file_ = static_cast<MachineFile*>(mapped);
    }

    std::mutex mutex_{};
    std::int64_t start_time_;
    int fd_ = -1;
    MachineFile* file_ = nullptr;
};

}  // namespace

// Field 22 of /proc/PID/stat.
std::int64_t start_time_of(std::int64_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return -1;
    std::istringstream fields(line.substr(line.rfind(')') + 2));
    std::string state;
    fields >> state;
    if (state == "Z" || state == "X") return -1;
    std::string skipped;
    for (int i = 4; i < 22; ++i) fields >> skipped;
    std::int64_t start_time = -1;
    fields >> start_time;
    return start_time;
}

int machine_gpu(int gpu) {
    const std::vector<int>& visible = settings().visible;
    if (gpu < 0 || gpu >= static_cast<int>(visible.size()))
        fail("a GPU that the process does not see");
    return visible[static_cast<std::size_t>(gpu)];
}

int own_gpu(int machine_gpu) {
    const std::vector<int>& visible = settings().visible;
    const auto found = std::find(visible.begin(), visible.end(), machine_gpu);
    return found == visible.end() ? -1 : static_cast<int>(found - visible.begin());
}

std::array<std::uint8_t, 16> uuid_of(int gpu) {
    const auto number = static_cast<std::uint64_t>(machine_gpu(gpu));
    Random random(std::hash<std::string>{}(settings().machine) + number);
    std::array<std::uint8_t, 16> bytes{};
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    return bytes;
}

bool take_memory(int own, std::int64_t bytes) {
    Machine& machine = Machine::shared();
    const int gpu = machine_gpu(own);
    return machine.locked(gpu, [&](Entry& mine) {
        if (bytes > settings().memory_bytes - machine.used(gpu)) return false;
        mine.bytes += bytes;
        return true;
    });
}

void give_memory(int gpu, std::int64_t bytes) {
    Machine::shared().locked(machine_gpu(gpu), [&](Entry& mine) {
        if (bytes > mine.bytes) fail("more memory is given back than was taken");
        mine.bytes -= bytes;
        return true;
    });
}

std::int64_t free_memory(int own) {
    Machine& machine = Machine::shared();
    const int gpu = machine_gpu(own);
    return machine.locked(gpu, [&](const Entry&) {
        return settings().memory_bytes - machine.used(gpu);
    });
}

std::vector<MemoryUser> memory_users(int own) {
    Machine& machine = Machine::shared();
    const int gpu = machine_gpu(own);
    return machine.locked(gpu, [&](const Entry&) { return machine.users(gpu); });
}

}  // namespace pitstop::emulator
