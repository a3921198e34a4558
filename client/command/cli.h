// The commands of pitstop_cli. Each gets the arguments after its name and returns the exit code: 0,
// 1 for an error (one line on standard error), 2 for a usage error, 130 after Ctrl-C.
#pragma once

#include "base/result.h"
#include "messages/update_seconds.h"

#include <optional>
#include <string>
#include <string_view>

namespace pitstop {

int cli_generate(int argc, char** argv);
int cli_status(int argc, char** argv);
int cli_push(int argc, char** argv);
int cli_keygen(int argc, char** argv);
// Runs pause, continue, abort, flush, update, stage, commit, drop, rollback, digests; returns
// nothing for any other name.
std::optional<int> cli_control(std::string_view command, int argc, char** argv);

// Returns the nonzero parts of a rank's staging time in words: "receive 0.310 s, rest 0.020 s".
[[nodiscard]] std::string text_of(const messages::StageSeconds& seconds);

// Prints "pitstop: <code>: <message>" and returns 1.
int cli_fail(const Error& error);

}  // namespace pitstop
