// Whether bytes are UTF-8. Source: Unicode 15, table 3-7 (well-formed UTF-8 byte sequences).
#pragma once

#include <string_view>

namespace pitstop {

[[nodiscard]] bool is_utf8(std::string_view text);

}  // namespace pitstop
