#include "tests/emulated_gpu/clique.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/bootstrap.h"
#include "tests/emulated_gpu/machine.h"

#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace pitstop::emulator {
namespace {

constexpr std::uint32_t kMagic = 0x6e63636c;

// The contents of a unique id, at most 128 bytes: the address of a listener in the process that
// made it, as in a real id, and the shared memory that the other processes map.
struct Place {
    std::uint32_t magic = kMagic;
    std::int32_t fd = -1;
    std::int64_t pid = 0;
    std::int64_t start_time = 0;
    Bootstrap bootstrap{};
};
static_assert(sizeof(Place) <= sizeof(ncclUniqueId));

struct Member {
    std::atomic<Presence> presence;
    std::int64_t pid;
    std::int64_t start_time;
    std::array<std::uint8_t, 16> uuid;
    std::atomic<std::uint64_t> num_put;
    std::atomic<std::uint64_t> num_read;
    Collective collective;
};

}  // namespace

struct Clique::Memory {
    std::atomic<int> num_ranks;
    std::atomic<int> claims[kRanksMax];
    Member members[kRanksMax];
    alignas(64) std::byte areas[kRanksMax][kPieceBytes];
};

ncclUniqueId Clique::create() {
    const int fd = ::memfd_create("pitstop_emulated_nccl", MFD_CLOEXEC);
    // Zeros are a clique without ranks. Untouched pages take no memory.
    if (fd < 0 || ::ftruncate(fd, sizeof(Memory)) != 0) fail("memfd_create");
    const Place place{
        .fd = fd,
        .pid = ::getpid(),
        .start_time = start_time_of(::getpid()),
        .bootstrap = own_bootstrap()};
    ncclUniqueId id{};
    std::memcpy(id.internal, &place, sizeof place);
    return id;
}

std::shared_ptr<Clique> Clique::open(const ncclUniqueId& id) {
    Place place;
    std::memcpy(&place, id.internal, sizeof place);
    if (place.magic != kMagic || start_time_of(place.pid) != place.start_time) return nullptr;
    if (!can_reach(place.bootstrap)) return nullptr;
    const std::string path =
        "/proc/" + std::to_string(place.pid) + "/fd/" + std::to_string(place.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    struct stat file {};
    const bool is_one = ::fstat(fd, &file) == 0 && file.st_size == sizeof(Memory);
    void* const mapped =
        is_one ? ::mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
               : MAP_FAILED;
    ::close(fd);
    if (mapped == MAP_FAILED) return nullptr;
    return std::shared_ptr<Clique>(new Clique(static_cast<Memory*>(mapped)));
}

Clique::~Clique() { ::munmap(memory_, sizeof(Memory)); }

bool Clique::check_in(int rank, int num_ranks, const std::array<std::uint8_t, 16>& uuid) {
    int expected = 0;
    if (!memory_->num_ranks.compare_exchange_strong(expected, num_ranks) && expected != num_ranks)
        return false;
    if (memory_->claims[rank].exchange(1) != 0) return false;
    Member& member = memory_->members[rank];
    member.pid = ::getpid();
    member.start_time = start_time_of(::getpid());
    member.uuid = uuid;
    member.presence = Presence::kHere;
    return true;
}

bool Clique::are_all_here(int num_ranks) const {
    for (int rank = 0; rank < num_ranks; ++rank) {
        if (memory_->members[rank].presence == Presence::kAbsent) return false;
    }
    return true;
}

void Clique::finalize(int rank) { memory_->members[rank].presence = Presence::kFinalized; }

bool Clique::are_all_finalized(int num_ranks) const {
    for (int rank = 0; rank < num_ranks; ++rank) {
        if (memory_->members[rank].presence != Presence::kFinalized) return false;
    }
    return true;
}

bool Clique::has_lost_one(int num_ranks) const {
    for (int rank = 0; rank < num_ranks; ++rank) {
        const Member& member = memory_->members[rank];
        if (member.presence == Presence::kHere && start_time_of(member.pid) != member.start_time)
            return true;
    }
    return false;
}

int Clique::rank_beside(int rank, int num_ranks) const {
    for (int other = 0; other < num_ranks; ++other) {
        if (other != rank && memory_->members[other].uuid == memory_->members[rank].uuid)
            return other;
    }
    return -1;
}

bool Clique::has_read(int rank, std::uint64_t turn) const {
    return memory_->members[rank].num_read > turn;
}

bool Clique::has_put(int rank, std::uint64_t turn) const {
    return memory_->members[rank].num_put > turn;
}

std::byte* Clique::area(int rank) { return memory_->areas[rank]; }

void Clique::put(int rank, std::uint64_t turn, const Collective& collective) {
    memory_->members[rank].collective = collective;
    memory_->members[rank].num_put = turn + 1;
}

void Clique::read(int rank, std::uint64_t turn) { memory_->members[rank].num_read = turn + 1; }

const Collective& Clique::collective_of(int rank) const {
    return memory_->members[rank].collective;
}

}  // namespace pitstop::emulator
