// Says what a mutex guards, so that Clang checks it (-Wthread-safety); other compilers read
// nothing. Source: Clang, "Thread Safety Analysis", clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
// A member that is touched without its mutex, and a function that is called without the one it
// needs, are errors of tests/tidy/test_clang.py.
#pragma once

#ifdef __clang__
#define PITSTOP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define PITSTOP_THREAD_ATTRIBUTE(x)
#endif

// Marks a member that is read and written only by whoever holds `mutex`.
#define GUARDED_BY(mutex) PITSTOP_THREAD_ATTRIBUTE(guarded_by(mutex))
// Marks a function whose caller holds `mutex` before and after.
#define REQUIRES(...) PITSTOP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))

// These are for base/mutex.h, whose types are what the analysis speaks of.
#define CAPABILITY(name) PITSTOP_THREAD_ATTRIBUTE(capability(name))
#define SCOPED_CAPABILITY PITSTOP_THREAD_ATTRIBUTE(scoped_lockable)
#define ACQUIRE(...) PITSTOP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) PITSTOP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS PITSTOP_THREAD_ATTRIBUTE(no_thread_safety_analysis)
