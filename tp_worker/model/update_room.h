// The place where a GPU's rank stages a version, and the KV that is left besides. Both are chosen
// at the start from measurements, and reported in `status` with the numbers.
//
// Pure.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::tp_worker {

enum class UpdateRoom : std::uint8_t {
    // staged if KV for a request of the whole context fits besides; else host if host memory for
    // two versions is free; else lend if it fits; else direct
    kAuto,
    kStaged,  // a second copy in the GPU's memory, or the start fails
    kHost,    // in page-locked host memory, uploaded by the commit, or the start fails
    // a second copy in the memory of KV, or the start fails; from the stage to the end of the
    // update nothing is generated, and nothing is retained
    kLend,
    kDirect,  // nowhere: an update overwrites the serving weights
};
// Accepts "auto", "staged", "host", "lend" or "direct". kInvalidArgument names what is accepted.
[[nodiscard]] Result<UpdateRoom> parse_update_room(std::string_view name);
[[nodiscard]] std::string_view name_of(UpdateRoom room);

// Measured and requested amounts; in bytes unless stated otherwise.
struct RoomFacts {
    std::string device{};
    std::int64_t free = 0;      // on the GPU, before anything was allocated there
    std::int64_t budget = 0;    // the part of `free` that may be used
    std::int64_t others = 0;    // the serving weights, activations, adapters: everything but KV
    std::int64_t adapters = 0;  // of others: the most that --adapter-memory and a load need
    std::int64_t copy = 0;      // a second copy of the weights
    std::int64_t page = 0;      // per page of KV
    // The requested pages of KV, or those of one request of the whole context.
    std::int64_t pages_wanted = 0;
    std::int64_t host_free = 0;  // free host memory, now
    std::int64_t host_copy = 0;  // host memory for a version
};

struct ChosenRoom {
    UpdateRoom room = UpdateRoom::kStaged;  // never kAuto
    std::string why{};
    std::int64_t num_pages = 0;  // pages of KV that also fit within the budget; may be below 1
};

[[nodiscard]] Error no_room_for_kv(double mem_fraction, const RoomFacts& facts);

// Errors: kResourceExhausted, with the numbers, if the requested room does not fit.
[[nodiscard]] Result<ChosenRoom> choose_room(UpdateRoom asked, const RoomFacts& facts);

}  // namespace pitstop::tp_worker
