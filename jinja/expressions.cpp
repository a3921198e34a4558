// The rendering of expressions.
#include "jinja/arithmetic.h"
#include "jinja/comparison.h"
#include "jinja/items.h"
#include "jinja/macro_call.h"
#include "jinja/python_repr.h"
#include "jinja/renderer.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

namespace pitstop::jinja {

Result<Value> Renderer::eval(const Expr& expr, const Scope& scope) {
    if (const auto* constant = std::get_if<Constant>(&expr.node)) return constant->value;
    RETURN_IF_ERROR(budget_.steps());
    RETURN_IF_ERROR(deeper());
    Result<Value> value = eval_node(expr, scope);
    --depth_;
    if (value && value->depth() > budget_.limits().depth_max) {
        value = make_error(
            ErrorCode::kTooLarge,
            "a value is nested deeper than {} levels",
            budget_.limits().depth_max
        );
    }
    if (!value && !error_line_) error_line_ = expr.line;
    return value;
}

Result<Value> Renderer::eval_node(const Expr& expr, const Scope& scope) {
    const auto& node = expr.node;
    if (const auto* name = std::get_if<Name>(&node)) {
        ASSIGN_OR_RETURN(Value value, lookup(name->name, scope));
        if (Loop* const* loop = value.get_if<Loop*>()) (*loop)->is_captured = true;
        return value;
    }
    if (const auto* tuple = std::get_if<TupleExpr>(&node)) {
        ASSIGN_OR_RETURN(std::vector<Value> items, eval_all(tuple->items, scope));
        return Value::tuple(std::move(items));
    }
    if (const auto* list = std::get_if<ListExpr>(&node)) {
        ASSIGN_OR_RETURN(std::vector<Value> items, eval_all(list->items, scope));
        return Value::list(std::move(items));
    }
    if (const auto* dict = std::get_if<DictExpr>(&node)) return eval_dict(*dict, scope);
    if (const auto* get = std::get_if<GetAttribute>(&node)) return eval_attribute(*get, scope);
    if (const auto* get = std::get_if<GetItem>(&node)) return eval_item(*get, scope);
    if (const auto* cut = std::get_if<Slice>(&node)) return eval_slice(*cut, scope);
    if (const auto* called = std::get_if<Call>(&node)) return eval_call(*called, scope);
    if (const auto* filter = std::get_if<FilterExpr>(&node)) {
        ASSIGN_OR_RETURN(const Value of, eval(*filter->of, scope));
        ASSIGN_OR_RETURN(Args args, eval_args(filter->args, scope));
        return call(env_, *filter->filter, of, std::move(args));
    }
    if (const auto* test = std::get_if<TestExpr>(&node)) {
        ASSIGN_OR_RETURN(const Value of, eval(*test->of, scope));
        ASSIGN_OR_RETURN(Args args, eval_args(test->args, scope));
        return call(env_, *test->test, of, std::move(args));
    }
    if (const auto* op = std::get_if<Unary>(&node)) {
        ASSIGN_OR_RETURN(const Value of, eval(*op->of, scope));
        return unary(op->op, of);
    }
    if (const auto* op = std::get_if<Binary>(&node)) return eval_binary(*op, scope);
    if (const auto* concat = std::get_if<Concat>(&node)) return eval_concat(*concat, scope);
    if (const auto* comparison = std::get_if<Compare>(&node))
        return eval_compare(*comparison, scope);
    const auto& conditional = std::get<Conditional>(node);
    ASSIGN_OR_RETURN(const Value condition, eval(*conditional.condition, scope));
    if (condition.is_true()) return eval(*conditional.yes, scope);
    if (conditional.no != nullptr) return eval(*conditional.no, scope);
    return Value::undefined("the inline if-expression is false and has no else");
}

Result<Value> Renderer::lookup(const std::string& name, const Scope& scope) {
    std::size_t num_seen = 0;
    const Value* in_scope = scope.find(name, num_seen);
    RETURN_IF_ERROR(budget_.scan(num_seen * sizeof(scope.variables[0])));
    if (in_scope != nullptr) return *in_scope;
    if (const Value* found = variables_.find(std::string_view(name))) return *found;
    if (const Builtin* function = find_function(name)) return Value::of(Function{function});
    return Value::undefined(fmt::format("'{}' is undefined", name));
}

Result<std::vector<Value>> Renderer::eval_all(
    const std::vector<ExprPtr>& exprs, const Scope& scope
) {
    RETURN_IF_ERROR(budget_.items(exprs.size(), sizeof(Value)));
    std::vector<Value> values;
    for (const ExprPtr& expr : exprs) {
        ASSIGN_OR_RETURN(Value value, eval(*expr, scope));
        values.push_back(std::move(value));
    }
    return values;
}

Result<Value> Renderer::eval_dict(const DictExpr& node, const Scope& scope) {
    Mapping mapping;
    for (const auto& [key_expr, value_expr] : node.items) {
        ASSIGN_OR_RETURN(Value key, eval(*key_expr, scope));
        const Sequence* sequence = key.as_sequence();
        if (key.as_mapping() != nullptr ||
            (sequence != nullptr && sequence->kind == SequenceKind::kList)) {
            return type_error("a {} cannot be a key", key.type_name());
        }
        ASSIGN_OR_RETURN(Value value, eval(*value_expr, scope));
        RETURN_IF_ERROR(set_item(mapping, std::move(key), std::move(value), budget_));
    }
    return Value::mapping(std::move(mapping));
}

Result<Value> Renderer::eval_attribute(const GetAttribute& node, const Scope& scope) {
    // `loop.index` reads the loop directly: a loop that becomes a value must be kept alive.
    if (const auto* name = std::get_if<Name>(&node.of->node)) {
        ASSIGN_OR_RETURN(const Value of, lookup(name->name, scope));
        if (Loop* const* loop = of.get_if<Loop*>()) return attribute_of(**loop, node.name);
        return get_attribute(of, node.name);
    }
    ASSIGN_OR_RETURN(const Value of, eval(*node.of, scope));
    if (Loop* const* loop = of.get_if<Loop*>()) return attribute_of(**loop, node.name);
    return get_attribute(of, node.name);
}

Result<Value> Renderer::eval_item(const GetItem& node, const Scope& scope) {
    ASSIGN_OR_RETURN(const Value of, eval(*node.of, scope));
    ASSIGN_OR_RETURN(const Value key, eval(*node.key, scope));
    if (Loop* const* loop = of.get_if<Loop*>(); loop != nullptr && key.as_text() != nullptr) {
        return attribute_of(**loop, key.as_text()->bytes);
    }
    return get_item(of, key, budget_);
}

Result<Value> Renderer::eval_slice(const Slice& node, const Scope& scope) {
    ASSIGN_OR_RETURN(const Value of, eval(*node.of, scope));
    const auto bound = [&](const ExprPtr& expr) -> Result<std::optional<std::int64_t>> {
        if (expr == nullptr) return std::optional<std::int64_t>{};
        ASSIGN_OR_RETURN(const Value value, eval(*expr, scope));
        if (value.is_none()) return std::optional<std::int64_t>{};
        if (value.is_whole()) return std::optional(value.whole());
        return type_error("a slice's bounds and step must be integers, not {}", value.type_name());
    };
    SliceBounds bounds;
    ASSIGN_OR_RETURN(bounds.begin, bound(node.begin));
    ASSIGN_OR_RETURN(bounds.end, bound(node.end));
    ASSIGN_OR_RETURN(const std::optional<std::int64_t> step, bound(node.step));
    bounds.step = step.value_or(1);
    if (bounds.step == 0) return type_error("a slice's step must not be 0");
    return slice(of, bounds, budget_);
}

Result<Value> Renderer::eval_binary(const Binary& node, const Scope& scope) {
    ASSIGN_OR_RETURN(const Value left, eval(*node.left, scope));
    if (node.op == BinaryOp::kAnd) return left.is_true() ? eval(*node.right, scope) : left;
    if (node.op == BinaryOp::kOr) return left.is_true() ? left : eval(*node.right, scope);
    ASSIGN_OR_RETURN(const Value right, eval(*node.right, scope));
    return binary(node.op, left, right, budget_);
}

Result<Value> Renderer::eval_concat(const Concat& node, const Scope& scope) {
    TextBuilder out(budget_);
    for (const ExprPtr& part : node.parts) {
        ASSIGN_OR_RETURN(const Value value, eval(*part, scope));
        write_str(value, out);
    }
    ASSIGN_OR_RETURN(std::string text, out.take());
    return Value::text(std::move(text));
}

Result<Value> Renderer::eval_compare(const Compare& node, const Scope& scope) {
    ASSIGN_OR_RETURN(Value left, eval(*node.first, scope));
    for (const auto& [op, expr] : node.rest) {
        ASSIGN_OR_RETURN(Value right, eval(*expr, scope));
        ASSIGN_OR_RETURN(const bool holds, compare(op, left, right, budget_));
        if (!holds) return Value::boolean(false);
        left = std::move(right);
    }
    return Value::boolean(true);
}

// ---- calls ----

Result<Args> Renderer::eval_args(const CallArgs& args, const Scope& scope) {
    Args out;
    ASSIGN_OR_RETURN(out.positional, eval_all(args.positional, scope));
    for (const auto& [name, expr] : args.named) {
        ASSIGN_OR_RETURN(Value value, eval(*expr, scope));
        out.named.emplace_back(name, std::move(value));
    }
    if (args.more_positional != nullptr) {
        ASSIGN_OR_RETURN(const Value value, eval(*args.more_positional, scope));
        ASSIGN_OR_RETURN(const std::vector<Value> more, items_of(value, budget_));
        RETURN_IF_ERROR(budget_.items(more.size(), sizeof(Value)));
        out.positional.insert(out.positional.end(), more.begin(), more.end());
    }
    if (args.more_named != nullptr) {
        ASSIGN_OR_RETURN(const Value value, eval(*args.more_named, scope));
        const Mapping* mapping = value.as_mapping();
        if (mapping == nullptr) return type_error("the value after '**' is not a mapping");
        RETURN_IF_ERROR(budget_.items(mapping->size(), kEntryBytes));
        for (const auto& [key, item] : mapping->entries()) {
            if (key.as_text() == nullptr) return type_error("a keyword is not a string");
            out.named.emplace_back(key.as_text()->bytes, item);
        }
    }
    return out;
}

Result<Value> Renderer::eval_call(const Call& node, const Scope& scope) {
    ASSIGN_OR_RETURN(const Value callee, eval(*node.callee, scope));
    ASSIGN_OR_RETURN(Args args, eval_args(node.args, scope));
    return call_value(callee, std::move(args));
}

Result<Value> Renderer::call_value(const Value& callee, Args args) {
    if (callee.is_undefined()) return undefined_error(callee);
    if (const auto* macro = callee.get_if<const Macro*>())
        return call_macro(**macro, std::move(args));
    if (const auto* method = callee.get_if<Method>()) {
        return call(env_, *method->builtin, *method->self, std::move(args));
    }
    if (const auto* method = callee.get_if<LoopMethod>())
        return call_loop(*method, std::move(args), budget_);
    if (const auto* function = callee.get_if<Function>()) {
        const Builtin& builtin = *function->builtin;
        if (builtin.run == nullptr) return kept_.make_namespace(std::move(args), budget_);
        Result<Value> value = call(env_, builtin, Value(), std::move(args));
        if (!value && builtin.name == "raise_exception") is_raised_ = true;
        return value;
    }
    return type_error("a value of type {} cannot be called", callee.type_name());
}

Result<Value> Renderer::call_macro(const Macro& macro, Args args) {
    const MacroDefinition& definition = *macro.definition;
    auto scope = std::make_unique<Scope>(Scope{.parent = macro.scope});
    const auto eval_default = [this](const Expr& expr, const Scope& in) { return eval(expr, in); };
    RETURN_IF_ERROR(bind_arguments(definition, std::move(args), *scope, budget_, eval_default));
    TextBuilder out(budget_);
    const Result<Flow> flow = run(definition.body, *scope, out);
    kept_.add_if_captured(std::move(scope));
    if (!flow) return flow.error();
    ASSIGN_OR_RETURN(std::string text, out.take());
    return Value::text(std::move(text));
}

}  // namespace pitstop::jinja
