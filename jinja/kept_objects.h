// Objects of one rendering that values may refer to after the statement that made them: namespaces,
// macros, and the scopes and loops that these have captured.
//
// Owns:    all of them, until the rendering ends.
// Bounded: by the rendering's budget, which the caller charges.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/scope.h"
#include "jinja/value.h"

#include <memory>
#include <utility>
#include <vector>

namespace pitstop::jinja {

class KeptObjects {
  public:
    // Makes the namespace of a call to namespace(), and charges for it. Errors: an argument is no
    // mapping, or the budget is spent.
    Result<Value> make_namespace(Args args, Budget& budget);
    Value add(const Macro& macro) {
        macros_.push_back(std::make_unique<Macro>(macro));
        return Value::of(static_cast<const Macro*>(macros_.back().get()));
    }
    // Keeps the scope if a macro that was defined in it refers to it.
    void add_if_captured(std::unique_ptr<Scope> scope) {
        if (scope->is_captured) scopes_.push_back(std::move(scope));
    }
    // Keeps a loop that a value refers to.
    void add(std::unique_ptr<Loop> loop) { loops_.push_back(std::move(loop)); }

  private:
    std::vector<std::unique_ptr<Namespace>> namespaces_{};
    std::vector<std::unique_ptr<Macro>> macros_{};
    std::vector<std::unique_ptr<Scope>> scopes_{};
    std::vector<std::unique_ptr<Loop>> loops_{};
};

}  // namespace pitstop::jinja
