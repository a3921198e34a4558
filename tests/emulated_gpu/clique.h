// What the ranks of an NCCL communicator share: who is there, and where they hand each other bytes.
// Memory of a file without a name, whose place the unique id says; processes and threads map it.
//
// Ranks exchange pieces in turns. In a turn each rank puts its piece into its own area, says so,
// and reads the areas that it needs; it begins the next turn when all have read in this one.
//
// Owns:    its mapping. The file goes with the last of them.
// Thread:  any; a rank's turns are its own.
// Bounded: by kRanksMax and kPieceBytes.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pitstop::emulator {

enum class CollectiveKind : std::uint8_t { kBroadcast, kAllReduce, kAllGather };

// What all ranks must say alike. Source: NCCL documentation, "Collective Operations": different
// counts or types are undefined behaviour, hangs among it.
struct Collective {
    CollectiveKind kind = CollectiveKind::kBroadcast;
    ncclDataType_t type = ncclInt8;
    ncclRedOp_t op = ncclSum;
    int root = 0;
    std::uint64_t num = 0;  // elements
    bool operator==(const Collective&) const = default;
};

enum class Presence : std::uint8_t { kAbsent, kHere, kFinalized };

class Clique {
  public:
    static constexpr int kRanksMax = 32;
    static constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

    // A new one, which lives as long as somebody has it open: the creator is first.
    static ncclUniqueId create();
    // Null: the id is none, nobody who has it open is left, or who made it cannot be reached.
    static std::shared_ptr<Clique> open(const ncclUniqueId& id);
    ~Clique();
    Clique(const Clique&) = delete;
    Clique& operator=(const Clique&) = delete;

    // Takes the rank's place. False: it is taken, or others count the ranks differently.
    [[nodiscard]] bool check_in(int rank, int num_ranks, const std::array<std::uint8_t, 16>& uuid);
    [[nodiscard]] bool are_all_here(int num_ranks) const;
    void finalize(int rank);
    [[nodiscard]] bool are_all_finalized(int num_ranks) const;
    // A process that checked in has ended without a finalize.
    [[nodiscard]] bool has_lost_one(int num_ranks) const;
    // Another rank on the same GPU; -1: none.
    [[nodiscard]] int rank_beside(int rank, int num_ranks) const;

    [[nodiscard]] bool has_read(int rank, std::uint64_t turn) const;
    [[nodiscard]] bool has_put(int rank, std::uint64_t turn) const;
    [[nodiscard]] std::byte* area(int rank);
    void put(int rank, std::uint64_t turn, const Collective& collective);
    void read(int rank, std::uint64_t turn);
    // REQUIRES: has_put(rank, turn) for a turn of it.
    [[nodiscard]] const Collective& collective_of(int rank) const;

  private:
    struct Memory;
    explicit Clique(Memory* memory) : memory_(memory) {}

    Memory* memory_;
};

}  // namespace pitstop::emulator
