// Where the tests' data lie: tests/data, launch/models.
//
// A compiled file of its own has the path, so that objects of the same sources in two checkouts are
// the same and a compiler's cache serves both.
#pragma once

#include <string>

namespace pitstop {

// PITSTOP_SOURCE_DIR of the environment (a bundle), else where this was built from.
[[nodiscard]] std::string source_dir();

}  // namespace pitstop
