// co_await inside ?:, && or ||: GCC 12 makes the awaited call even if the condition excludes it.
// With -DWRITTEN_OUT the co_await has a statement of its own, which is right. `choice CASE` exits
// with 0 if the excluded call did not run.
#include "http_proc/server/task.h"

#include <cstdio>
#include <string_view>

namespace {

using pitstop::http::Task;

int num_asked = 0;

Task<bool> is_ready() {
    ++num_asked;
    co_return true;
}

Task<int> code_of() {
    ++num_asked;
    co_return 200;
}

#ifdef WRITTEN_OUT
Task<int> beside_and(bool is_up) {
    if (!is_up) co_return 503;
    const bool ready = co_await is_ready();
    co_return ready ? 200 : 503;
}
Task<int> beside_or(bool is_up) {
    if (!is_up) co_return 503;
    const bool ready = co_await is_ready();
    co_return ready ? 200 : 503;
}
Task<int> branch(bool is_up) {
    if (!is_up) co_return 503;
    co_return co_await code_of();
}
#else
Task<int> beside_and(bool is_up) { co_return is_up&& co_await is_ready() ? 200 : 503; }
Task<int> beside_or(bool is_up) { co_return !is_up || !co_await is_ready() ? 503 : 200; }
Task<int> branch(bool is_up) { co_return is_up ? co_await code_of() : 503; }
#endif

Task<> run(std::string_view which, int& code) {
    if (which == "and") code = co_await beside_and(/*is_up=*/false);
    if (which == "or") code = co_await beside_or(/*is_up=*/false);
    if (which == "branch") code = co_await branch(/*is_up=*/false);
}

}  // namespace

int main(int argc, char** argv) {
    int code = 0;
    run_detached(run(argc == 2 ? argv[1] : "", code));
    std::printf("answered %d, asked %d\n", code, num_asked);
    return code == 503 && num_asked == 0 ? 0 : 1;
}
