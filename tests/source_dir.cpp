#include "tests/source_dir.h"

#include <cstdlib>

namespace pitstop {

std::string source_dir() {
    const char* const bundle = std::getenv("PITSTOP_SOURCE_DIR");
    return bundle != nullptr ? bundle : PITSTOP_SOURCE_DIR;
}

}  // namespace pitstop
