// The tests' data: tests/data, launch/models.
//
// The path is compiled in a file of its own. So the objects of all other sources are equal in two
// checkouts, and a compiler's cache serves both.
#pragma once

#include <string>

namespace pitstop {

// PITSTOP_SOURCE_DIR of the environment (a bundle), otherwise the sources of this build.
[[nodiscard]] std::string source_dir();

}  // namespace pitstop
