// The driver's functions that the project looks up by name (cuGetProcAddress).
#pragma once

namespace pitstop::emulator {

// Null: no such function here.
[[nodiscard]] void* driver_function(const char* symbol);

}  // namespace pitstop::emulator
