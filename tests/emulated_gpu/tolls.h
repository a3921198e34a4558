// What a GPU does slowly, or waits for, where the one in software is done at once: paid for if the
// environment asks (PITSTOP_EMULATED_TOLLS, settings.h). Times are those of an H200's machine
// (bench/results/gpu/first_1.md, what the probe found). While a call pays, the process's other
// calls wait: there a stream and a buffer were made only when page-locking had ended. No page says
// which calls do.
//
// Thread: any.
#pragma once

#include "tests/emulated_gpu/streams.h"

#include <cstddef>

namespace pitstop::emulator {

// Every call begins with it: returns when no other call pays.
void wait_for_payers();

// Of memory of the host: 0.54 s a GiB.
void pay_for_page_locking(std::size_t bytes);
// Of another process's memory: 1.7 ms to open it, 0.2 ms to close it.
void pay_for_opening();
void pay_for_closing();

// Waits for all work of the GPU whose memory was freed; work that still uses it is an error here.
// Returns the context's sticky error, or 0.
// Source: CUDA C++ Programming Guide, "Stream Ordered Memory Allocator".
[[nodiscard]] int pay_for_freeing(int gpu);

// Works of a stream beyond which a call that adds another waits. No page gives the number; 1024 is
// what is seen.
inline constexpr std::size_t kWorksMax = 1024;

}  // namespace pitstop::emulator
