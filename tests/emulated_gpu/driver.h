// The driver's functions that the project looks up by name (cuGetProcAddress).
#pragma once

namespace pitstop::emulator {

// Null: this function does not exist here.
[[nodiscard]] void* driver_function(const char* symbol);

}  // namespace pitstop::emulator
