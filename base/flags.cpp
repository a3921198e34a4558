#include "base/flags.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <utility>

namespace pitstop {
namespace {

template <class T>
struct NumberOf {
    using Type = T;
};
template <class T>
struct NumberOf<std::optional<T>> {
    using Type = T;
};

// Target is a number type, or std::optional of one.
template <class Target>
Result<> parse_number(
    std::string_view name, std::string_view kind, std::string_view text, Target* target
) {
    typename NumberOf<Target>::Type value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) {
        return make_error(ErrorCode::kInvalidArgument, "--{}: '{}' is out of range", name, text);
    }
    if (error != std::errc{} || end != text.data() + text.size()) {
        return make_error(ErrorCode::kInvalidArgument, "--{} takes {}, not '{}'", name, kind, text);
    }
    *target = value;
    return Ok{};
}

}  // namespace

FlagSet::FlagSet(std::string_view program, std::string_view purpose)
    : program_(program), purpose_(purpose) {}

void FlagSet::add_flag(Flag flag) {
    const bool is_new = std::none_of(flags_.begin(), flags_.end(), [&](const Flag& other) {
        return other.name == flag.name;
    });
    CHECK(is_new);
    flags_.push_back(std::move(flag));
}

void FlagSet::add(std::string_view name, std::string* target, std::string_view help) {
    add_flag({std::string(name), std::string(help), *target, true, [target](std::string_view text) {
                  *target = text;
                  return Result<>(Ok{});
              }});
}

void FlagSet::add(
    std::string_view name, std::optional<std::string>* target, std::string_view help
) {
    add_flag({std::string(name), std::string(help), "", true, [target](std::string_view text) {
                  *target = text;
                  return Result<>(Ok{});
              }});
}

void FlagSet::add(std::string_view name, int* target, std::string_view help) {
    add_flag(
        {std::string(name),
         std::string(help),
         std::to_string(*target),
         true,
         [target, flag = std::string(name)](std::string_view text) {
             return parse_number(flag, "a whole number", text, target);
         }}
    );
}

void FlagSet::add(std::string_view name, std::int64_t* target, std::string_view help) {
    add_flag(
        {std::string(name),
         std::string(help),
         std::to_string(*target),
         true,
         [target, flag = std::string(name)](std::string_view text) {
             return parse_number(flag, "a whole number", text, target);
         }}
    );
}

void FlagSet::add(std::string_view name, double* target, std::string_view help) {
    add_flag(
        {std::string(name),
         std::string(help),
         fmt::format("{}", *target),
         true,
         [target, flag = std::string(name)](std::string_view text) {
             return parse_number(flag, "a number", text, target);
         }}
    );
}

void FlagSet::add(
    std::string_view name, std::optional<std::int64_t>* target, std::string_view help
) {
    add_flag(
        {std::string(name),
         std::string(help),
         "",
         true,
         [target, flag = std::string(name)](std::string_view text) {
             return parse_number(flag, "a whole number", text, target);
         }}
    );
}

void FlagSet::add(
    std::string_view name, std::optional<std::uint64_t>* target, std::string_view help
) {
    add_flag(
        {std::string(name),
         std::string(help),
         "",
         true,
         [target, flag = std::string(name)](std::string_view text) {
             return parse_number(flag, "a whole number of at least 0", text, target);
         }}
    );
}

void FlagSet::add(std::string_view name, bool* target, std::string_view help) {
    add_flag({std::string(name), std::string(help), "", false, [target](std::string_view) {
                  *target = true;
                  return Result<>(Ok{});
              }});
}

void FlagSet::add(std::string_view name, std::vector<std::string>* target, std::string_view help) {
    add_flag({std::string(name), std::string(help), "", true, [target](std::string_view text) {
                  target->emplace_back(text);
                  return Result<>(Ok{});
              }});
}

std::optional<int> FlagSet::read(int argc, char** argv) {
    if (const Result<> parsed = parse(argc, argv); !parsed) return fail(parsed.error());
    if (!help_asked_) return std::nullopt;
    std::fputs(help().c_str(), stdout);
    return 0;
}

Result<> FlagSet::parse(int argc, char** argv) {
    bool only_positional = false;
    for (int i = 1; i < argc; ++i) {
        const std::string_view arg = argv[i];
        if (only_positional || arg.size() < 2 || !arg.starts_with("-")) {
            positional_.emplace_back(arg);
            continue;
        }
        if (arg == "--") {
            only_positional = true;
            continue;
        }
        if (arg == "--help" || arg == "-h") {
            help_asked_ = true;
            continue;
        }
        const std::size_t equals = arg.find('=');
        const std::string_view name =
            arg.starts_with("--") ? arg.substr(2, equals == arg.npos ? arg.npos : equals - 2) : "";
        const auto flag = std::find_if(flags_.begin(), flags_.end(), [&](const Flag& candidate) {
            return candidate.name == name;
        });
        if (flag == flags_.end()) {
            return make_error(ErrorCode::kInvalidArgument, "unknown flag '{}'", arg);
        }
        if (!flag->takes_value) {
            if (equals != arg.npos) {
                return make_error(ErrorCode::kInvalidArgument, "--{} takes no value", name);
            }
            RETURN_IF_ERROR(flag->set(""));
            continue;
        }
        if (equals == arg.npos && i + 1 >= argc) {
            return make_error(ErrorCode::kInvalidArgument, "--{} needs a value", name);
        }
        RETURN_IF_ERROR(
            flag->set(equals == arg.npos ? std::string_view(argv[++i]) : arg.substr(equals + 1))
        );
    }
    return Ok{};
}

namespace {

// The placeholder that --help shows for a flag's value; the launcher's --help uses the same words.
std::string_view placeholder(std::string_view name, std::string_view default_text) {
    constexpr auto kByEnding = std::to_array<std::pair<std::string_view, std::string_view>>({
        {"-s", "S"},
        {"dir", "DIR"},
        {"door", "H:P"},
        {"key", "FILE"},
        {"label", "NAME"},
        {"client", "NAME"},
        {"node", "NAME"},
        {"remove", "NAME"},
        {"digest", "HEX"},
    });
    for (const auto& [ending, word] : kByEnding) {
        if (name.ends_with(ending)) return word;
    }
    return !default_text.empty() &&
                   default_text.find_first_not_of("-.0123456789") == std::string_view::npos
               ? "N"
               : "X";
}

}  // namespace

std::string FlagSet::help() const {
    std::string text = fmt::format("{}: {}\n\n", program_, purpose_);
    for (const Flag& flag : flags_) {
        std::string left = fmt::format("  --{}", flag.name);
        if (flag.takes_value) left += fmt::format(" {}", placeholder(flag.name, flag.default_text));
        text += fmt::format("{:<30} {}", left, flag.help);
        if (!flag.default_text.empty()) text += fmt::format(" (default {})", flag.default_text);
        text += "\n";
    }
    return text;
}

int FlagSet::fail(const Error& error) const {
    std::fprintf(
        stderr, "%s: %s (--help lists the flags)\n", program_.c_str(), error.message.c_str()
    );
    return 2;
}

}  // namespace pitstop
