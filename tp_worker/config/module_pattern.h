// A regular expression of Python's over the path of a module, as an adapter's configuration has
// them
// ("model.layers.3.self_attn.q_proj").
//
// The syntax is PCRE2's, of which Python's `re` is nearly a part. A pattern comes from outside: its
// length, its nesting and the steps of a match are bounded.
//
// Thread: one at a time.
#pragma once

#include "base/result.h"

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

    // Errors: kInvalidArgument, what is wrong with the pattern and where.
    static Result<ModulePattern> compile(std::string pattern);

    // Both match from the first character on. Errors: kResourceExhausted, the pattern needs too
    // many steps. Does it match all of the path (re.fullmatch)?
    [[nodiscard]] Result<bool> matches_whole(std::string_view path) const;
    // Returns what its group of this name matched at the path's beginning (re.match); nothing: no
    // match. REQUIRES: the pattern has such a group.
    [[nodiscard]] Result<std::optional<std::string>> group(std::string_view path, const char* name)
        const;

  private:
    struct Compiled;
    struct Free {
        void operator()(Compiled* compiled) const;
    };
    [[nodiscard]] Result<bool> match(std::string_view path, std::uint32_t options) const;

    std::string text_{};
    std::unique_ptr<Compiled, Free> compiled_{};
};

}  // namespace pitstop::tp_worker
