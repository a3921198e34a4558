#include "jinja/renderer.h"

#include "base/utf8.h"
#include "jinja/items.h"
#include "jinja/python_repr.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

namespace pitstop::jinja {
namespace {

// The longest error message: a template may raise any text it was given.
constexpr std::size_t kMessageBytesMax = 4096;

}  // namespace

Result<std::string> Renderer::render(const Body& body) {
    TextBuilder out(budget_);
    Scope root;
    const Result<Flow> flow = run(body, root, out);
    Result<std::string> text = flow ? out.take() : Result<std::string>(flow.error());
    if (!text) {
        Error error = std::move(text).error();
        error.message = utf8_prefix(error.message, kMessageBytesMax);
        if (error_line_ && !is_raised_) {
            error.message = fmt::format("line {}: {}", *error_line_, error.message);
        }
        return error;
    }
    if (text->size() > budget_.limits().output_bytes_max) {
        return make_error(
            ErrorCode::kTooLarge,
            "the rendered text has {} bytes; accepted are {}",
            text->size(),
            budget_.limits().output_bytes_max
        );
    }
    return text;
}

Result<> Renderer::deeper() {
    if (++depth_ <= budget_.limits().depth_max) return Ok{};
    --depth_;
    return make_error(
        ErrorCode::kTooLarge,
        "expressions, statements and calls are nested deeper than {}",
        budget_.limits().depth_max
    );
}

Result<Renderer::Flow> Renderer::run(const Body& body, Scope& scope, TextBuilder& out) {
    RETURN_IF_ERROR(deeper());
    Result<Flow> flow = Flow::kNext;
    for (const Statement& statement : body) {
        if (const Result<> step = budget_.steps(); !step) {
            flow = step.error();
        } else {
            flow = run(statement, scope, out);
        }
        if (!flow && !error_line_) error_line_ = statement.line;
        if (!flow || *flow != Flow::kNext) break;
    }
    --depth_;
    return flow;
}

Result<Renderer::Flow> Renderer::run(const Statement& statement, Scope& scope, TextBuilder& out) {
    const auto& node = statement.node;
    if (const auto* data = std::get_if<Data>(&node)) {
        out.add(data->text);
        return out.is_full() ? Result<Flow>(out.take().error()) : Flow::kNext;
    }
    if (const auto* print = std::get_if<Print>(&node)) {
        ASSIGN_OR_RETURN(const Value value, eval(*print->value, scope));
        write_str(value, out);
        return out.is_full() ? Result<Flow>(out.take().error()) : Flow::kNext;
    }
    if (const auto* branch = std::get_if<If>(&node)) return run_if(*branch, scope, out);
    if (const auto* loop = std::get_if<For>(&node)) return run_for(*loop, scope, out);
    if (const auto* set = std::get_if<Set>(&node)) {
        ASSIGN_OR_RETURN(Value value, eval(*set->value, scope));
        RETURN_IF_ERROR(assign(set->target, std::move(value), scope));
        return Flow::kNext;
    }
    if (const auto* set = std::get_if<SetBlock>(&node)) {
        ASSIGN_OR_RETURN(Value text, text_of(set->body, scope));
        ASSIGN_OR_RETURN(text, filtered(set->filters, std::move(text), scope));
        RETURN_IF_ERROR(assign(set->target, std::move(text), scope));
        return Flow::kNext;
    }
    if (const auto* definition = std::get_if<MacroDefinition>(&node)) {
        RETURN_IF_ERROR(budget_.bytes(sizeof(Macro) + sizeof(Scope)));
        scope.capture();
        scope.set(definition->name, kept_.add(Macro{definition, &scope}));
        return Flow::kNext;
    }
    if (const auto* block = std::get_if<FilterBlock>(&node)) {
        ASSIGN_OR_RETURN(Value text, text_of(block->body, scope));
        ASSIGN_OR_RETURN(text, filtered(block->filters, std::move(text), scope));
        write_str(text, out);
        return Flow::kNext;
    }
    if (const auto* with = std::get_if<With>(&node)) return run_with(*with, scope, out);
    if (const auto* scoped = std::get_if<Scoped>(&node)) return run_inner(scoped->body, scope, out);
    return std::holds_alternative<Break>(node) ? Flow::kBreak : Flow::kContinue;
}

Result<Renderer::Flow> Renderer::run_if(const If& node, Scope& scope, TextBuilder& out) {
    for (const auto& [condition, body] : node.branches) {
        ASSIGN_OR_RETURN(const Value value, eval(*condition, scope));
        if (value.is_true()) return run(body, scope, out);
    }
    return run(node.otherwise, scope, out);
}

Result<Renderer::Flow> Renderer::run_inner(const Body& body, const Scope& scope, TextBuilder& out) {
    auto inner = std::make_unique<Scope>(Scope{.parent = &scope});
    Result<Flow> flow = run(body, *inner, out);
    kept_.add_if_captured(std::move(inner));
    return flow;
}

Result<Value> Renderer::text_of(const Body& body, const Scope& scope) {
    TextBuilder out(budget_);
    RETURN_IF_ERROR(run_inner(body, scope, out));
    ASSIGN_OR_RETURN(std::string text, out.take());
    return Value::text(std::move(text));
}

Result<Value> Renderer::filtered(
    const std::vector<FilterExpr>& filters, Value value, Scope& scope
) {
    for (const FilterExpr& filter : filters) {
        ASSIGN_OR_RETURN(Args args, eval_args(filter.args, scope));
        ASSIGN_OR_RETURN(value, call(env_, *filter.filter, value, std::move(args)));
    }
    return value;
}

Result<Renderer::Flow> Renderer::run_with(const With& node, Scope& scope, TextBuilder& out) {
    auto inner = std::make_unique<Scope>(Scope{.parent = &scope});
    for (const auto& [target, expr] : node.values) {
        ASSIGN_OR_RETURN(Value value, eval(*expr, scope));  // values do not see each other
        RETURN_IF_ERROR(assign(target, std::move(value), *inner));
    }
    Result<Flow> flow = run(node.body, *inner, out);
    kept_.add_if_captured(std::move(inner));
    return flow;
}

Result<> Renderer::assign(const Target& target, Value value, Scope& scope) {
    if (target.is_tuple) {
        ASSIGN_OR_RETURN(std::vector<Value> parts, items_of(value, budget_));
        if (parts.size() != target.items.size()) {
            return type_error(
                "{} values where {} names are assigned to", parts.size(), target.items.size()
            );
        }
        for (std::size_t i = 0; i < parts.size(); ++i) {
            RETURN_IF_ERROR(assign(target.items[i], std::move(parts[i]), scope));
        }
        return Ok{};
    }
    if (!target.attribute) {
        RETURN_IF_ERROR(budget_.scan(scope.variables.size() * sizeof(scope.variables[0])));
        scope.set(target.name, std::move(value));
        return Ok{};
    }
    ASSIGN_OR_RETURN(const Value of, lookup(target.name, scope));
    Namespace* const* space = of.get_if<Namespace*>();
    if (space == nullptr) {
        return type_error("'{}' is not a namespace: its attributes cannot be set", target.name);
    }
    RETURN_IF_ERROR(budget_.bytes(kEntryBytes + target.attribute->size()));
    (*space)->attributes.insert(*target.attribute, std::move(value));
    return Ok{};
}

// ---- loops ----

Result<Renderer::Flow> Renderer::run_for(const For& node, Scope& scope, TextBuilder& out) {
    ASSIGN_OR_RETURN(const Value value, eval(*node.items, scope));
    auto loop = std::make_unique<Loop>(Loop{
        .target = &node.target, .condition = node.condition.get(), .scope = &scope});
    ASSIGN_OR_RETURN(loop->items, items_of(value, budget_));
    Result<Flow> flow = run_turns(node, *loop, scope, out);
    if (flow && loop->index0 < 0) {
        flow = run_inner(node.otherwise, scope, out);
    } else if (flow) {
        flow = Flow::kNext;  // break and continue belonged to this loop
    }
    // Values that still refer to the loop see an ended loop without items.
    loop->condition = nullptr;
    loop->items.clear();
    loop->next = 0;
    if (loop->is_captured) {
        RETURN_IF_ERROR(budget_.bytes(sizeof(Loop)));
        kept_.add(std::move(loop));
    }
    return flow;
}

Result<Renderer::Flow> Renderer::run_turns(
    const For& node, Loop& loop, Scope& scope, TextBuilder& out
) {
    for (;;) {
        RETURN_IF_ERROR(budget_.steps());
        std::optional<Value> item = std::exchange(loop.after, std::nullopt);
        if (!item) {
            ASSIGN_OR_RETURN(item, pull(loop));
        }
        if (!item) return Flow::kNext;
        ++loop.index0;
        loop.before = std::exchange(loop.current, *item);
        auto turn = std::make_unique<Scope>(Scope{.parent = &scope});
        turn->set("loop", Value::of(&loop));
        RETURN_IF_ERROR(assign(node.target, *std::move(item), *turn));
        Result<Flow> flow = run(node.body, *turn, out);
        if (turn->is_captured) loop.is_captured = true;
        kept_.add_if_captured(std::move(turn));
        if (!flow || *flow == Flow::kBreak) return flow;
    }
}

Result<std::optional<Value>> Renderer::pull(Loop& loop) {
    while (loop.next < loop.items.size()) {
        Value item = loop.items[loop.next++];
        if (loop.condition == nullptr) return std::optional(std::move(item));
        RETURN_IF_ERROR(budget_.steps());
        Scope scope{.parent = loop.scope};
        RETURN_IF_ERROR(assign(*loop.target, item, scope));
        ASSIGN_OR_RETURN(const Value holds, eval(*loop.condition, scope));
        if (holds.is_true()) return std::optional(std::move(item));
    }
    return std::optional<Value>{};
}

}  // namespace pitstop::jinja
