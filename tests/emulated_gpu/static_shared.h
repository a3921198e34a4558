// The bytes of a kernel's static shared memory. Such variables are static variables here (see
// cuda_language.h), and the program's own symbol table has their sizes: a local variable of the
// function _ZN...E is called _ZZN...E<name>. Variables of inlined helpers belong to the helpers,
// and are not counted.
//
// Source: Itanium C++ ABI, "Scope Encoding"; System V ABI, "Symbol Table".
// Thread: any.
#pragma once

#include <cstddef>

namespace pitstop::emulator {

// 0 if the program has no symbol table.
[[nodiscard]] std::size_t static_shared_bytes(const void* kernel);

}  // namespace pitstop::emulator
