#include "tests/sim/problem.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <unistd.h>

namespace pitstop::sim {
namespace {

// Read through the descriptor: text still in the stream's buffer does not count.
TEST(Problem, IsOutAtOnce) {
    std::FILE* const out = std::tmpfile();
    ASSERT_NE(out, nullptr);
    print_problem(out, 7, "a token of no version");
    std::array<char, 64> line{};
    const ::ssize_t size = ::pread(::fileno(out), line.data(), line.size(), 0);
    EXPECT_EQ(
        std::string(line.data(), static_cast<std::size_t>(size > 0 ? size : 0)),
        "seed 7: a token of no version\n"
    );
    std::fclose(out);
}

}  // namespace
}  // namespace pitstop::sim
