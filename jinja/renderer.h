// Runs a parsed template once. Source: the code that Jinja 3.1's compiler.py generates.
//
// Owns:    the objects that values still refer to (kept_objects.h).
// Bounded: by its budget; by the depth of nested expressions, statements and calls.
#pragma once

#include "base/result.h"
#include "jinja/ast.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/kept_objects.h"
#include "jinja/loops.h"
#include "jinja/scope.h"
#include "jinja/value.h"

#include <ctime>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::jinja {

class Renderer {
  public:
    Renderer(const Mapping& variables, const std::tm& now, Budget& budget)
        : variables_(variables), budget_(budget), env_{budget, now} {}

    Result<std::string> render(const Body& body);

  private:
    enum class Flow { kNext, kBreak, kContinue };

    // ---- statements (renderer.cpp) ----
    Result<Flow> run(const Body& body, Scope& scope, TextBuilder& out);
    Result<Flow> run(const Statement& statement, Scope& scope, TextBuilder& out);
    Result<Flow> run_if(const If& node, Scope& scope, TextBuilder& out);
    Result<Flow> run_for(const For& node, Scope& scope, TextBuilder& out);
    Result<Flow> run_turns(const For& node, Loop& loop, Scope& scope, TextBuilder& out);
    Result<Flow> run_with(const With& node, Scope& scope, TextBuilder& out);
    // Runs a body in a scope of its own.
    Result<Flow> run_inner(const Body& body, const Scope& scope, TextBuilder& out);
    Result<Value> text_of(const Body& body, const Scope& scope);
    Result<Value> filtered(const std::vector<FilterExpr>& filters, Value value, Scope& scope);
    Result<> assign(const Target& target, Value value, Scope& scope);

    // ---- loops ----
    // Returns the item of the next turn, or nothing.
    Result<std::optional<Value>> pull(Loop& loop);
    Result<Value> attribute_of(Loop& loop, std::string_view name) {
        return loop_attribute(loop, name, [this](Loop& of) { return pull(of); });
    }

    // ---- expressions (expressions.cpp) ----
    Result<Value> eval(const Expr& expr, const Scope& scope);
    Result<Value> eval_node(const Expr& expr, const Scope& scope);
    Result<Value> lookup(const std::string& name, const Scope& scope);
    Result<std::vector<Value>> eval_all(const std::vector<ExprPtr>& exprs, const Scope& scope);
    Result<Value> eval_dict(const DictExpr& node, const Scope& scope);
    Result<Value> eval_attribute(const GetAttribute& node, const Scope& scope);
    Result<Value> eval_item(const GetItem& node, const Scope& scope);
    Result<Value> eval_slice(const Slice& node, const Scope& scope);
    Result<Value> eval_call(const Call& node, const Scope& scope);
    Result<Value> eval_binary(const Binary& node, const Scope& scope);
    Result<Value> eval_concat(const Concat& node, const Scope& scope);
    Result<Value> eval_compare(const Compare& node, const Scope& scope);
    Result<Args> eval_args(const CallArgs& args, const Scope& scope);
    Result<Value> call_value(const Value& callee, Args args);
    Result<Value> call_macro(const Macro& macro, Args args);

    [[nodiscard]] Result<> deeper();  // enters one level of recursion; --depth_ leaves it

    const Mapping& variables_;
    Budget& budget_;
    Env env_;
    int depth_ = 0;
    std::optional<int> error_line_{};  // where the first error was
    bool is_raised_ = false;           // raised by the template: its words are the whole message

    KeptObjects kept_{};
};

}  // namespace pitstop::jinja
