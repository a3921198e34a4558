// Renders chat templates with the output of transformers, which uses Jinja 3.1 in its immutable
// sandbox: without autoescape, and with trimmed blocks, loop controls, generation blocks, `tojson`
// as json.dumps, `raise_exception` and `strftime_now`.
//
//   auto parsed = jinja::Template::parse(source);
//   if (!parsed) return fail(parsed.error());
//   auto text = parsed->render(variables, now);
//
// Pure: reads no clock, file or environment. No template and no variables can crash the process:
// depth, steps and memory are limited (budget.h).
//
// Known differences: integers beyond 64 bits do not take part in arithmetic. `map`, `select` and
// their like are computed at once, so an error in an unused result is reported too. If a loop reads
// a variable that the template sets only after the loop, the loop sees the caller's variable, not
// an undefined. A few rare letters have no upper case (python_text.cpp).
//
// Thread: any; immutable.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

namespace pitstop::jinja {

class Template {
  public:
    // Errors: kInvalidArgument (syntax), kUnsupported (valid Jinja that is missing here),
    // kTooLarge; each names the line and the construct.
    static Result<Template> parse(std::string_view source);

    Template(Template&&) noexcept;
    Template& operator=(Template&&) noexcept;
    ~Template();

    // `variables` are by name; `now` is local time, for strftime_now.
    // Errors: kInvalidArgument: the text that the template raised, or what went wrong with these
    // variables and on which line; kTooLarge: over a limit.
    [[nodiscard]] Result<std::string> render(
        const Mapping& variables, const std::tm& now, const Limits& limits = {}
    ) const;

  private:
    struct Tree;
    explicit Template(std::unique_ptr<const Tree> tree);

    std::unique_ptr<const Tree> tree_;
};

}  // namespace pitstop::jinja
