// Parses the command-line flags of the processes: `--name value` or `--name=value`; a bool flag
// takes no value. Every flag has a help line; an unknown flag or a bad value is an Error that lists
// what is accepted.
//
//   FlagSet flags("tp_worker", "One tensor-parallel rank: weights, KV memory, forward pass.");
//   int rank = 0;
//   flags.add("rank", &rank, "this rank, from 0");
//   if (const auto code = flags.read(argc, argv)) return *code;
#pragma once

#include "base/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

class FlagSet {
  public:
    FlagSet(std::string_view program, std::string_view purpose);

    // The value in *target is the default and is shown by --help.
    void add(std::string_view name, std::string* target, std::string_view help);
    // Without the flag the target stays nullopt, which differs from an empty value.
    void add(std::string_view name, std::optional<std::string>* target, std::string_view help);
    void add(std::string_view name, int* target, std::string_view help);
    void add(std::string_view name, std::int64_t* target, std::string_view help);
    void add(std::string_view name, double* target, std::string_view help);
    // Without the flag the target stays nullopt.
    void add(std::string_view name, std::optional<std::int64_t>* target, std::string_view help);
    void add(std::string_view name, std::optional<std::uint64_t>* target, std::string_view help);
    void add(std::string_view name, bool* target, std::string_view help);
    // The flag may be given more than once; each value is appended.
    void add(std::string_view name, std::vector<std::string>* target, std::string_view help);

    // Parses main()'s arguments. Returns the exit code if the program is to end: help was requested
    // and has been printed, or the flags are wrong.
    [[nodiscard]] std::optional<int> read(int argc, char** argv);

    // Arguments that are not flags go to positional(). After "--" everything is positional.
    Result<> parse(int argc, char** argv);

    [[nodiscard]] const std::vector<std::string>& positional() const { return positional_; }
    [[nodiscard]] bool help_asked() const { return help_asked_; }
    [[nodiscard]] std::string help() const;

    // Prints the error and a hint to standard error; returns the exit code for a usage error, 2.
    [[nodiscard]] int fail(const Error& error) const;

  private:
    struct Flag {
        std::string name{};
        std::string help{};
        std::string default_text{};
        bool takes_value = true;
        std::function<Result<>(std::string_view)> set{};
    };
    void add_flag(Flag flag);

    std::string program_;
    std::string purpose_;
    std::vector<Flag> flags_{};
    std::vector<std::string> positional_{};
    bool help_asked_ = false;
};

}  // namespace pitstop
