// States what a mutex guards, so that Clang checks it (-Wthread-safety); for other compilers the
// macros are empty. Source: Clang, "Thread Safety Analysis",
// clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
// tests/tidy/test_clang.py fails if a member is accessed without its mutex, or a function is called
// without the mutex that it requires.
#pragma once

#ifdef __clang__
#define PITSTOP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define PITSTOP_THREAD_ATTRIBUTE(x)
#endif

// Marks a member that is read and written only while `mutex` is held.
#define GUARDED_BY(mutex) PITSTOP_THREAD_ATTRIBUTE(guarded_by(mutex))
// Marks a function whose caller holds `mutex` before and after.
#define REQUIRES(...) PITSTOP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))

// For base/mutex.h alone, whose types implement the locks.
#define CAPABILITY(name) PITSTOP_THREAD_ATTRIBUTE(capability(name))
#define SCOPED_CAPABILITY PITSTOP_THREAD_ATTRIBUTE(scoped_lockable)
#define ACQUIRE(...) PITSTOP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) PITSTOP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS PITSTOP_THREAD_ATTRIBUTE(no_thread_safety_analysis)
