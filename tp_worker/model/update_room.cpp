#include "tp_worker/model/update_room.h"

#include "base/check.h"

#include <fmt/format.h>

namespace pitstop::tp_worker {
namespace {

std::string numbers(const RoomFacts& facts) {
    return fmt::format(
        "{} bytes were free, of which {} may be taken; the weights and what is beside them take "
        "{}, a second copy {}, and {} pages of KV {}",
        facts.free,
        facts.budget,
        facts.others,
        facts.copy,
        facts.pages_wanted,
        facts.pages_wanted * facts.page
    );
}

}  // namespace

std::string_view name_of(UpdateRoom room) {
    switch (room) {
        case UpdateRoom::kAuto:
            return "auto";
        case UpdateRoom::kStaged:
            return "staged";
        case UpdateRoom::kDirect:
            return "direct";
    }
    CHECK(false);
}

Result<UpdateRoom> parse_update_room(std::string_view name) {
    for (const UpdateRoom room : {UpdateRoom::kAuto, UpdateRoom::kStaged, UpdateRoom::kDirect}) {
        if (name == name_of(room)) return room;
    }
    return make_error(
        ErrorCode::kInvalidArgument, "--update-mode takes auto, staged or direct, not '{}'", name
    );
}

Result<ChosenRoom> choose_room(UpdateRoom asked, const RoomFacts& facts) {
    const std::int64_t left = facts.budget - facts.others;  // for KV and a second copy
    const std::int64_t pages_beside_copy = (left - facts.copy) / facts.page;
    const bool fits = left > facts.copy && pages_beside_copy >= facts.pages_wanted;
    if (asked == UpdateRoom::kStaged && !fits) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "no room for a second copy of the weights on {}, which --update-mode staged asks for: "
            "{}. --update-mode direct does without",
            facts.device,
            numbers(facts)
        );
    }
    ChosenRoom chosen;
    chosen.room = asked;
    if (asked == UpdateRoom::kAuto) chosen.room = fits ? UpdateRoom::kStaged : UpdateRoom::kDirect;
    chosen.num_pages = chosen.room == UpdateRoom::kStaged ? pages_beside_copy : left / facts.page;
    const std::string_view by = asked == UpdateRoom::kAuto
                                    ? (fits ? "auto: a second copy of the weights fits beside KV"
                                            : "auto: no second copy of the weights fits beside KV")
                                    : "asked for";
    chosen.why = fmt::format("{}; {}", by, numbers(facts));
    return chosen;
}

}  // namespace pitstop::tp_worker
