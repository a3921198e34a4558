#include "tp_worker/sources/torch_storage.h"

#include "base/check.h"
#include "base/cut_guard.h"
#include "base/system_error.h"
#include "tp_worker/sources/process_maps.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <optional>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kHeaderBytes = 64;

// The header of an object, mapped while this process changes the count in it.
class Header {
  public:
    explicit Header(int fd) {
        struct stat info {};
        if (::fstat(fd, &info) != 0 || info.st_size < kHeaderBytes) return;
        void* start = ::mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (start != MAP_FAILED) start_ = static_cast<std::int32_t*>(start);
    }
    ~Header() {
        if (start_ != nullptr) ::munmap(start_, kHeaderBytes);
    }
    Header(const Header&) = delete;
    Header& operator=(const Header&) = delete;

    // Calls use(references) unless the header is gone; the sender may truncate even the header.
    template <class F>
    void count(F use) {
        if (start_ == nullptr) return;
        const CutGuard guard({reinterpret_cast<const std::byte*>(start_), kHeaderBytes});
        use(std::atomic_ref<std::int32_t>(*start_));
    }

  private:
    std::int32_t* start_ = nullptr;
};

}  // namespace

// Reads "/torch_<pid>_<digits>_<digits>": no other slash, so no path but one in /dev/shm.
std::optional<pid_t> torch_sender_of(std::string_view name) {
    constexpr std::string_view kPrefix = "/torch_";
    constexpr std::size_t kNameMax = 128;
    if (!name.starts_with(kPrefix) || name.size() > kNameMax) return std::nullopt;
    name.remove_prefix(kPrefix.size());
    int num_numbers = 0;
    bool was_digit = false;
    for (const char c : name) {
        if (c >= '0' && c <= '9') {
            num_numbers += was_digit ? 0 : 1;
            was_digit = true;
        } else if (c == '_' && was_digit) {
            was_digit = false;
        } else {
            return std::nullopt;
        }
    }
    if (!was_digit || num_numbers != 3) return std::nullopt;
    pid_t sender = 0;  // 0: a number with more digits than any process id
    std::from_chars(name.data(), name.data() + name.size(), sender);
    return sender;
}

Result<std::unique_ptr<TorchStorage>> TorchStorage::open(const std::string& name) {
    const std::optional<pid_t> sender = torch_sender_of(name);
    if (!sender) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' is not a name of a shared storage of torch (/torch_<pid>_<random>_<n>)",
            name.substr(0, 128)
        );
    }
    const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return make_error(
            code_of_errno(errno, ErrorCode::kPermissionDenied),
            "the sender's shared memory {} cannot be opened: {}",
            name,
            std::strerror(errno)
        );
    }
    return std::unique_ptr<TorchStorage>(new TorchStorage(name, *sender, fd));
}

TorchStorage::~TorchStorage() {
    if (data_ != nullptr)
        ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(kHeaderBytes + bytes_));
    ::close(fd_);
}

Result<> TorchStorage::map(std::int64_t bytes) {
    CHECK(data_ == nullptr);
    struct stat info {};
    if (::fstat(fd_, &info) != 0 || bytes < 0 || info.st_size - kHeaderBytes < bytes) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "shared memory {} has {} bytes after its header; the sender declared {}",
            name_,
            info.st_size - kHeaderBytes,
            bytes
        );
    }
    const auto size = static_cast<std::size_t>(kHeaderBytes + bytes);
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_, 0);
    if (start == MAP_FAILED) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "cannot map {} bytes of shared memory {}: {}",
            size,
            name_,
            std::strerror(errno)
        );
    }
    data_ = static_cast<const std::byte*>(start);
    bytes_ = bytes;
    return Ok{};
}

std::span<const std::byte> TorchStorage::bytes() const {
    CHECK(data_ != nullptr);
    return {data_ + kHeaderBytes, static_cast<std::size_t>(bytes_)};
}

Result<> TorchStorage::is_whole() const {
    struct stat info {};
    if (::fstat(fd_, &info) == 0 && info.st_size >= kHeaderBytes + bytes_) return Ok{};
    return make_error(ErrorCode::kDataLoss, "shared memory {} became shorter", name_);
}

TorchStorage::Returned TorchStorage::give_back() {
    Returned returned = Returned::kDone;
    Header(fd_).count([&](std::atomic_ref<std::int32_t> references) {
        std::int32_t num = references.load();
        while (num > 1 && !references.compare_exchange_weak(num, num - 1)) continue;
        if (num == 1) returned = Returned::kLast;
    });
    return returned;
}

void TorchStorage::remove() {
    Header(fd_).count([&](std::atomic_ref<std::int32_t> references) {
        if (references.fetch_sub(1) == 1) ::shm_unlink(name_.c_str());
    });
}

TorchStorage::File TorchStorage::file() const {
    struct stat info {};
    CHECK(::fstat(fd_, &info) == 0);
    return {.device = info.st_dev, .inode = info.st_ino};
}

void give_back(std::span<const std::unique_ptr<TorchStorage>> storages) {
    std::vector<TorchStorage*> last;
    for (const std::unique_ptr<TorchStorage>& storage : storages) {
        if (storage->give_back() == TorchStorage::Returned::kLast) last.push_back(storage.get());
    }
    // Reads the mappings after the count: a sender that has the storage mapped now had its
    // reference when the count was read.
    std::map<pid_t, ProcessMaps> maps;  // usually of one sender
    for (TorchStorage* storage : last) {
        const pid_t sender = storage->sender();
        const auto of_sender = maps.try_emplace(sender, sender).first;
        const TorchStorage::File file = storage->file();
        if (!of_sender->second.has(file.device, file.inode)) storage->remove();
    }
}

}  // namespace pitstop::tp_worker
