// Renders chat templates: Jinja as models use it, rendered as the Python reference does (Jinja 3.1
// in the immutable sandbox that transformers sets up: no autoescape, trimmed blocks, loop controls,
// generation blocks, `tojson` as json.dumps, `raise_exception`, `strftime_now`).
//
//   auto parsed = jinja::Template::parse(source);
//   if (!parsed) return fail(parsed.error());
//   auto text = parsed->render(variables, now);
//
// It is pure: it reads no clock, file or environment. Nothing a template or its variables say can
// crash it: depth, steps and memory are limited (budget.h).
//
// It is known to differ: integers beyond 64 bits are not computed with; what `map`, `select` and
// their like give is computed at once, so an error in it comes also where nobody looks at it; a
// variable that a loop reads and the template sets only behind the loop is the caller's in the
// loop, not undefined; a few rare letters have no upper case (python_text.cpp).
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
    // Errors: kInvalidArgument (syntax), kUnsupported (Jinja, but not here), kTooLarge; each names
    // the line and what is there.
    static Result<Template> parse(std::string_view source);

    Template(Template&&) noexcept;
    Template& operator=(Template&&) noexcept;
    ~Template();

    // `variables` go by name; `now` is local time, for strftime_now.
    // Errors: kInvalidArgument: what the template raised, word for word, or what it did wrong with
    // these variables and on which line; kTooLarge: over a limit.
    [[nodiscard]] Result<std::string> render(
        const Mapping& variables, const std::tm& now, const Limits& limits = {}
    ) const;

  private:
    struct Tree;
    explicit Template(std::unique_ptr<const Tree> tree);

    std::unique_ptr<const Tree> tree_;
};

}  // namespace pitstop::jinja
