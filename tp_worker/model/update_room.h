// Says where a GPU's rank puts a version that is staged, and how much KV is left beside it: chosen
// at the start from what was measured, and said in `status` with the numbers.
//
// It is pure.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::tp_worker {

enum class UpdateRoom : std::uint8_t {
    kAuto,    // staged where KV for a request of the whole context fits beside it; else host where
              // host memory for two versions is free; else lend where it fits; else direct
    kStaged,  // a second copy in the GPU's memory, or the start fails
    kHost,    // in page-locked host memory, uploaded by the commit, or the start fails
    kLend,    // a second copy where KV lies otherwise: nothing is generated from the stage to the
              // end of the update, nothing is retained; or the start fails
    kDirect,  // nowhere: an update overwrites what serves
};
// Takes "auto", "staged", "host", "lend" or "direct". kInvalidArgument names what is accepted.
[[nodiscard]] Result<UpdateRoom> parse_update_room(std::string_view name);
[[nodiscard]] std::string_view name_of(UpdateRoom room);

// Holds what was measured, and what is asked for; bytes where nothing else is said.
struct RoomFacts {
    std::string device{};
    std::int64_t free = 0;    // before anything was put there
    std::int64_t budget = 0;  // what of that may be taken
    std::int64_t others = 0;  // the weights that serve, activations, everything but KV
    std::int64_t copy = 0;    // a second copy of the weights
    std::int64_t page = 0;    // per page of KV
    // So many pages of KV are asked for, or are those of one request of the whole context.
    std::int64_t pages_wanted = 0;
    std::int64_t host_free = 0;  // host memory, now
    std::int64_t host_copy = 0;  // host memory, for a version
};

struct ChosenRoom {
    UpdateRoom room = UpdateRoom::kStaged;  // never kAuto
    std::string why{};
    std::int64_t num_pages = 0;  // pages of KV that fit beside it within the budget; may be below 1
};

// Errors: kResourceExhausted, what was asked for does not fit; with the numbers.
[[nodiscard]] Result<ChosenRoom> choose_room(UpdateRoom asked, const RoomFacts& facts);

}  // namespace pitstop::tp_worker
