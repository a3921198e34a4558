// The shared state of an NCCL communicator's ranks: the ranks, and the areas through which they
// exchange bytes. The unique id says where to find its unnamed file, which the processes map.
//
// Ranks exchange pieces in turns. In a turn each rank puts its piece into its own area, announces
// it, and reads the areas that it needs; its next turn begins when all ranks have read in this one.
//
// Owns:    its mapping. The file disappears with the last mapping.
// Thread:  any; each rank takes its own turns only.
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

// The values in which all ranks must agree. Source: NCCL documentation, "Collective Operations":
// different counts or types are undefined behaviour, which includes hangs.
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

    // Makes a clique and opens it. A clique lives as long as some process has it open.
    static ncclUniqueId create();
    // Null: the id is invalid, no process has the clique open, or its maker cannot be reached.
    static std::shared_ptr<Clique> open(const ncclUniqueId& id);
    ~Clique();
    Clique(const Clique&) = delete;
    Clique& operator=(const Clique&) = delete;

    // Takes the rank's place. False: the place is taken, or others have named another num_ranks.
    [[nodiscard]] bool check_in(int rank, int num_ranks, const std::array<std::uint8_t, 16>& uuid);
    [[nodiscard]] bool are_all_here(int num_ranks) const;
    void finalize(int rank);
    [[nodiscard]] bool are_all_finalized(int num_ranks) const;
    // Returns whether a process that checked in has ended without a finalize.
    [[nodiscard]] bool has_lost_one(int num_ranks) const;
    // Returns another rank on the same GPU; -1: none.
    [[nodiscard]] int rank_beside(int rank, int num_ranks) const;

    [[nodiscard]] bool has_read(int rank, std::uint64_t turn) const;
    [[nodiscard]] bool has_put(int rank, std::uint64_t turn) const;
    [[nodiscard]] std::byte* area(int rank);
    void put(int rank, std::uint64_t turn, const Collective& collective);
    void read(int rank, std::uint64_t turn);
    // REQUIRES: has_put(rank, turn) for one of its turns.
    [[nodiscard]] const Collective& collective_of(int rank) const;

  private:
    struct Memory;
    explicit Clique(Memory* memory) : memory_(memory) {}

    Memory* memory_;
};

}  // namespace pitstop::emulator
