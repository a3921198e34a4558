// Numbers of fp32 that are bf16 numbers, in half of their memory. Narrowing and widening are exact,
// and work in place: the bf16 numbers are in the first half of the fp32 numbers' bytes.
//
// Thread: any; nothing here has state.
#pragma once

#include <cstddef>
#include <span>

namespace pitstop::tp_worker {

// Returns whether each of these fp32 numbers is a bf16 number. REQUIRES: whole numbers.
[[nodiscard]] bool are_bf16(std::span<const std::byte> numbers);
// Leaves the bf16 numbers in the first half. REQUIRES: are_bf16(numbers).
void narrow(std::span<std::byte> numbers);
// Makes fp32 numbers of the bf16 numbers in the first half. REQUIRES: whole fp32 numbers.
void widen(std::span<std::byte> numbers);

}  // namespace pitstop::tp_worker
