#include "tp_worker/model/update_room.h"

#include "base/check.h"

#include <fmt/format.h>

namespace pitstop::tp_worker {
namespace {

std::string taken(const RoomFacts& facts) {
    if (facts.adapters == 0) return fmt::format("weights and activations take {}", facts.others);
    return fmt::format(
        "weights, activations and adapters take {}, of which {} are for --adapter-memory and a "
        "load",
        facts.others,
        facts.adapters
    );
}

std::string numbers(const RoomFacts& facts) {
    return fmt::format(
        "{} bytes were free, of which {} may be used; {}, a second "
        "copy {}, {} pages of KV {}; in host memory {} are free, and a version takes {}",
        facts.free,
        facts.budget,
        taken(facts),
        facts.copy,
        facts.pages_wanted,
        facts.pages_wanted * facts.page,
        facts.host_free,
        facts.host_copy
    );
}

}  // namespace

std::string_view name_of(UpdateRoom room) {
    switch (room) {
        case UpdateRoom::kAuto:
            return "auto";
        case UpdateRoom::kStaged:
            return "staged";
        case UpdateRoom::kHost:
            return "host";
        case UpdateRoom::kLend:
            return "lend";
        case UpdateRoom::kDirect:
            return "direct";
    }
    CHECK(false);
}

Result<UpdateRoom> parse_update_room(std::string_view name) {
    for (const UpdateRoom room :
         {UpdateRoom::kAuto,
          UpdateRoom::kStaged,
          UpdateRoom::kHost,
          UpdateRoom::kLend,
          UpdateRoom::kDirect}) {
        if (name == name_of(room)) return room;
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "--update-mode takes auto, staged, host, lend or direct, not '{}'",
        name
    );
}

Error no_room_for_kv(double mem_fraction, const RoomFacts& facts) {
    return make_error(
        ErrorCode::kResourceExhausted,
        "no room for KV on {}: {} bytes were free, of which --mem-fraction {} allows {}; {}, a "
        "page "
        "{}",
        facts.device,
        facts.free,
        mem_fraction,
        facts.budget,
        taken(facts),
        facts.page
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
            "{}. --update-mode host, lend and direct do without",
            facts.device,
            numbers(facts)
        );
    }
    if (asked == UpdateRoom::kHost && facts.host_free < facts.host_copy) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "no room for a version of the weights in host memory, which --update-mode host asks "
            "for: {} bytes are free, it takes {}. --update-mode lend and direct do without",
            facts.host_free,
            facts.host_copy
        );
    }
    const bool fits_in_kv = left >= facts.copy;
    if (asked == UpdateRoom::kLend && !fits_in_kv) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "no room for a second copy of the weights on {} even without KV, which --update-mode "
            "lend asks for: {}. --update-mode host and direct do without",
            facts.device,
            numbers(facts)
        );
    }
    ChosenRoom chosen{.room = asked, .why = "asked for"};
    if (asked == UpdateRoom::kAuto && fits) {
        chosen = {UpdateRoom::kStaged, "auto: a second copy of the weights fits beside KV"};
    } else if (asked == UpdateRoom::kAuto) {
        // Half of the free memory, because other workers on this machine may count the same memory.
        const bool has_host = facts.host_free / 2 >= facts.host_copy;
        if (has_host) {
            chosen = {
                UpdateRoom::kHost,
                "auto: no second copy of the weights fits beside KV, and one fits into host memory "
                "twice"};
        } else if (fits_in_kv) {
            chosen = {
                UpdateRoom::kLend,
                "auto: no second copy of the weights fits beside KV, nor twice into host memory, "
                "and one fits where KV lies"};
        } else {
            chosen = {
                UpdateRoom::kDirect,
                "auto: no second copy of the weights fits beside KV, nor twice into host memory, "
                "nor where KV lies"};
        }
    }
    chosen.why += "; " + numbers(facts);
    chosen.num_pages = chosen.room == UpdateRoom::kStaged ? pages_beside_copy : left / facts.page;
    return chosen;
}

}  // namespace pitstop::tp_worker
