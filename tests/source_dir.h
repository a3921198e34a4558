// The tests' data: tests/data, launch/models.
//
// The path has a compiled file of its own, so that objects of the same sources in two checkouts are
// equal and a compiler's cache serves both.
#pragma once

#include <string>

namespace pitstop {

// PITSTOP_SOURCE_DIR of the environment (a bundle), otherwise the sources of this build.
[[nodiscard]] std::string source_dir();

}  // namespace pitstop
