// co_await in a condition, in a function that declares no variable: GCC 12 gives the awaited object
// no place in the coroutine's frame, and nothing runs, or the process dies. With -DWRITTEN_OUT the
// object is a variable, which is right. `condition CASE` exits with 0 if the statement behind the
// condition ran.
#include "http_proc/server/task.h"

#include <cstdio>
#include <string_view>

namespace {

using pitstop::http::Task;

int num_ran = 0;

Task<bool> yes() { co_return true; }
Task<bool> no() { co_return false; }
Task<int> one() { co_return 1; }

#ifdef WRITTEN_OUT
Task<> in_if() {
    const bool is_so = co_await yes();
    if (is_so) ++num_ran;
}
Task<> in_while() {
    bool is_so = co_await yes();
    while (is_so) {
        ++num_ran;
        is_so = co_await no();
    }
}
Task<> in_do() {
    bool is_so = false;
    do {
        ++num_ran;
        is_so = co_await no();
    } while (is_so);
}
Task<> in_for() {
    for (bool is_so = co_await yes(); is_so; is_so = co_await no()) ++num_ran;
}
Task<> in_switch() {
    const int which = co_await one();
    switch (which) {
        case 1:
            ++num_ran;
    }
}
#else
Task<> in_if() {
    if (co_await yes()) ++num_ran;
}
Task<> in_while() {
    while (co_await yes()) {
        ++num_ran;
        break;
    }
}
Task<> in_do() {
    do {
        ++num_ran;
    } while (co_await no());
}
Task<> in_for() {
    for (; co_await yes();) {
        ++num_ran;
        break;
    }
}
Task<> in_switch() {
    switch (co_await one()) {
        case 1:
            ++num_ran;
    }
}
#endif

void run(std::string_view which) {
    if (which == "if") run_detached(in_if());
    if (which == "while") run_detached(in_while());
    if (which == "do") run_detached(in_do());
    if (which == "for") run_detached(in_for());
    if (which == "switch") run_detached(in_switch());
}

}  // namespace

int main(int argc, char** argv) {
    run(argc == 2 ? argv[1] : "");
    std::printf("ran %d times\n", num_ran);
    return num_ran == 1 ? 0 : 1;
}
