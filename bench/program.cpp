#include "bench/program.h"

#include "bench/machine.h"

#include <fmt/format.h>

#include <cstdio>

namespace pitstop::bench {

int run_program(const Program& program, int argc, char** argv) {
    FlagSet flags(program.name, program.about);
    program.add_flags(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    if (const auto checked = program.check(flags); !checked) return flags.fail(checked.error());
    const Result<int> code = program.run(command_of(argc, argv));
    if (code) return *code;
    fmt::print(stderr, "{}: {}\n", program.name, code.error().message);
    return 1;
}

}  // namespace pitstop::bench
