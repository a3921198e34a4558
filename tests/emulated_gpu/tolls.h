// Operations that are slow or wait on a GPU, but are done at once in software: they take their time
// if the environment requests it (PITSTOP_EMULATED_TOLLS, settings.h). Times are those of an H200's
// machine (bench/results/gpu/first_1.md, the probe's results). While a call takes its time, the
// process's other calls wait: on that machine a stream and a buffer were made only after
// page-locking had ended. No page says which calls wait.
//
// Thread: any.
#pragma once

#include "tests/emulated_gpu/streams.h"

#include <cstddef>

namespace pitstop::emulator {

// Every call begins with this function, which returns when no other call is taking its time.
void wait_for_payers();

// For host memory: 0.54 s per GiB.
void pay_for_page_locking(std::size_t bytes);
// For another process's memory: 1.7 ms to open it, 0.2 ms to close it.
void pay_for_opening();
void pay_for_closing();

// Waits for all work of the GPU whose memory was freed; work that still uses it is an error here.
// Returns the context's sticky error, or 0.
// Source: CUDA C++ Programming Guide, "Stream Ordered Memory Allocator".
[[nodiscard]] int pay_for_freeing(int gpu);

// The most works in a stream: a call that adds one more waits. No page gives the number; 1024 was
// observed.
inline constexpr std::size_t kWorksMax = 1024;

}  // namespace pitstop::emulator
