// CHECK states an invariant of this process. A CHECK that fails is a bug in this process, so it
// prints and aborts in every build. Never use CHECK for data from a wire, a file or a flag: return
// a Result (result.h).
#pragma once

namespace pitstop {

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace pitstop

#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) [[unlikely]]                               \
            ::pitstop::check_failed(#condition, __FILE__, __LINE__); \
    } while (false)
