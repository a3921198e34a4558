// The allow-list of globals.
#pragma once

#include "pickle/reader.h"

#include <optional>
#include <string>
#include <string_view>

namespace pitstop::pickle {

struct KnownGlobal {
    Kind kind = Kind::kGlobal;  // kDType for a dtype
    Global global = Global::kNone;
    std::string text{};  // the dtype's or the exception's name
};

// Returns the meaning of this exact pair on this channel; nothing if it is not allowed.
[[nodiscard]] std::optional<KnownGlobal> find_global(
    std::string_view module, std::string_view name, Channel channel
);

}  // namespace pitstop::pickle
