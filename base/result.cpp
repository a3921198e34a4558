#include "base/result.h"

#include <algorithm>

namespace pitstop {

ErrorCode error_code_named(std::string_view name) {
    const auto* const found = std::ranges::find(kErrorCodeNames, name);
    if (found == kErrorCodeNames.end()) return ErrorCode::kInternal;
    return static_cast<ErrorCode>(found - kErrorCodeNames.begin());
}

}  // namespace pitstop
