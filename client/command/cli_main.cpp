// pitstop_cli controls a running tree from the command line.
#include "client/command/cli.h"

#include <cstdio>
#include <exception>
#include <string_view>

namespace pitstop {

int cli_fail(const Error& error) {
    fmt::print(stderr, "pitstop: {}: {}\n", name_of(error.code), error.message);
    return 1;
}

std::string text_of(const messages::StageSeconds& seconds) {
    std::string text;
    messages::StageSeconds(seconds).fields_in(
        [&](std::string_view name, double value, std::string_view /*about*/) {
            name.remove_suffix(std::string_view("_s").size());
            if (value <= 0 && name != "receive") return;
            text += fmt::format("{}{} {:.3f} s", text.empty() ? "" : ", ", name, value);
        }
    );
    return text;
}

namespace {

int usage(std::FILE* out, int exit_code) {
    fmt::print(
        out,
        "usage: pitstop_cli generate --run-dir DIR \"prompt\" [flags]   stream text\n"
        "       pitstop_cli status --run-dir DIR [--json]            the tree's state\n"
        "       pitstop_cli pause | continue | abort | flush         generation (admin door)\n"
        "       pitstop_cli update DIR | stage DIR | commit | drop | rollback | digests   weights\n"
        "       pitstop_cli keygen DIR [--client NAME]               keys of the tcp doors\n"
        "--run-dir DIR, or --tcp-door HOST:PORT --admin-tcp-door HOST:PORT --key FILE.\n"
        "Each command takes --help.\n"
    );
    return exit_code;
}

int run(int argc, char** argv) {
    if (argc < 2) return usage(stderr, 2);
    const std::string_view command = argv[1];
    if (command == "generate") return cli_generate(argc - 1, argv + 1);
    if (command == "status") return cli_status(argc - 1, argv + 1);
    if (command == "push") return cli_push(argc - 1, argv + 1);
    if (command == "keygen") return cli_keygen(argc - 1, argv + 1);
    if (const auto code = cli_control(command, argc - 1, argv + 1)) return *code;
    if (command == "--help" || command == "help") return usage(stdout, 0);
    fmt::print(stderr, "pitstop: no command '{}'\n", command);
    return usage(stderr, 2);
}

}  // namespace
}  // namespace pitstop

int main(int argc, char** argv) {
    try {
        return pitstop::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "pitstop: %s\n", error.what());
        return 1;
    }
}
