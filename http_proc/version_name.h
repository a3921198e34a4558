// What the dialects call a weight version: its label.
#pragma once

#include <string>

namespace pitstop {

// The weights a tree began with may have no label; both engines say "default" then.
inline const std::string& version_name(const std::string& label) {
    static const std::string kDefault = "default";
    return label.empty() ? kDefault : label;
}

}  // namespace pitstop
