// How much static shared memory a kernel has. Its variables are static variables here (see
// cuda_language.h), whose sizes the program's own symbol table has: a local variable of the
// function _ZN...E is called _ZZN...E<name>. What inlined helpers declare is theirs, and not
// counted.
//
// Source: Itanium C++ ABI, "Scope Encoding"; System V ABI, "Symbol Table".
// Thread: any.
#pragma once

#include <cstddef>

namespace pitstop::emulator {

// 0 where the program has no symbol table.
[[nodiscard]] std::size_t static_shared_bytes(const void* kernel);

}  // namespace pitstop::emulator
