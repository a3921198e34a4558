#include "tests/emulated_gpu/products.h"

namespace pitstop::emulator {

Products& products() {
    static Products instance;
    return instance;
}

}  // namespace pitstop::emulator
