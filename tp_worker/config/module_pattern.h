// A regular expression of Python's over the path of a module ("model.layers.3.self_attn.q_proj"),
// as in an adapter's configuration.
//
// The syntax is PCRE2's, which includes nearly all of Python's `re`. A pattern comes from outside:
// its length, its nesting and the steps of a match are bounded, and so are the steps of all
// matches.
//
// Thread: one at a time.
#pragma once

#include "base/result.h"
#include "tp_worker/config/match_steps.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::tp_worker {

class ModulePattern {
  public:
    static constexpr std::size_t kBytesMax = 4096;

    // Errors: kInvalidArgument describes the fault of the pattern and its place.
    static Result<ModulePattern> compile(std::string pattern);

    // Returns whether the pattern matches the whole path (re.fullmatch). Errors of both functions:
    // kResourceExhausted, if the pattern needs too many steps; those of MatchSteps.
    [[nodiscard]] Result<bool> matches_whole(std::string_view path, MatchSteps& steps) const;
    // Returns the text of the named group in a match at the path's beginning (re.match); nothing
    // without a match. REQUIRES: the pattern has such a group.
    [[nodiscard]] Result<std::optional<std::string>> group(
        std::string_view path, const char* name, MatchSteps& steps
    ) const;

  private:
    struct Compiled;
    struct Free {
        void operator()(Compiled* compiled) const;
    };
    [[nodiscard]] Result<bool> match(
        std::string_view path, std::uint32_t options, MatchSteps& steps
    ) const;

    std::string text_{};
    std::unique_ptr<Compiled, Free> compiled_{};
};

}  // namespace pitstop::tp_worker
