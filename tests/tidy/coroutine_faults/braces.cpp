// Braces that make an aggregate in an expression with co_await: GCC 12 destroys the aggregate's
// members twice. With -DWRITTEN_OUT the aggregate is a variable, which is right. `braces CASE`
// exits with 0 if as many members were destroyed as were made.
#include "http_proc/server/task.h"

#include <cstdio>
#include <string_view>
#include <utility>

namespace {

using pitstop::http::Task;

int num_made = 0;
int num_destroyed = 0;

struct Counted {
    Counted() { ++num_made; }
    Counted(const Counted&) { ++num_made; }
    Counted& operator=(const Counted&) = default;
    ~Counted() { ++num_destroyed; }
};

struct Question {  // an aggregate
    Counted counted{};
    int value = 0;
};

struct Waiting {  // an aggregate that is awaited itself
    int value = 0;
    Counted counted{};

    bool await_ready() const { return true; }
    void await_suspend(std::coroutine_handle<>) const {}
    int await_resume() const { return value; }
};

Task<int> ask(Question question) { co_return question.value; }
Task<int> one() { co_return 1; }
int sum(const Question& question, int value) { return question.value + value; }

#ifdef WRITTEN_OUT
Task<int> named() {
    Question question{.value = 1};
    co_return co_await ask(std::move(question));
}
Task<int> unnamed() {
    Question question{.value = 1};
    co_return co_await ask(std::move(question));
}
Task<int> awaited() {
    const Waiting waiting{.value = 1};
    co_return co_await waiting;
}
Task<int> beside() {
    const int value = co_await one();
    co_return sum(Question{}, value);
}
Task<int> around() {
    const int value = co_await one();
    co_return Question{.value = value}.value;
}
#else
Task<int> named() { co_return co_await ask(Question{.value = 1}); }
Task<int> unnamed() { co_return co_await ask({.value = 1}); }
Task<int> awaited() { co_return co_await Waiting{.value = 1}; }
Task<int> beside() { co_return sum(Question{}, co_await one()); }
Task<int> around() { co_return Question{.value = co_await one()}.value; }
#endif

Task<> run(std::string_view which, int& value) {
    if (which == "named") value = co_await named();
    if (which == "unnamed") value = co_await unnamed();
    if (which == "awaited") value = co_await awaited();
    if (which == "beside") value = co_await beside();
    if (which == "around") value = co_await around();
}

}  // namespace

int main(int argc, char** argv) {
    int value = 0;
    run_detached(run(argc == 2 ? argv[1] : "", value));
    std::printf("value %d, made %d, destroyed %d\n", value, num_made, num_destroyed);
    return value == 1 && num_made == num_destroyed ? 0 : 1;
}
