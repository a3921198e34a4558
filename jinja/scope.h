// Keeps the variables that statements see, and what a rendering owns besides.
#pragma once

#include "jinja/ast.h"
#include "jinja/value.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::jinja {

// A scope is a macro's body, a turn of a loop, ... A name is looked for outwards; an assignment
// stays here.
struct Scope {
    const Scope* parent = nullptr;
    std::vector<std::pair<std::string_view, Value>>
        variables{};  // names of the tree, which outlives
    // A macro was defined here or further inside: it lives as long as the rendering. `mutable`:
    // said of scopes that are otherwise only read.
    mutable bool is_captured = false;

    void capture() const {
        for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
            scope->is_captured = true;
        }
    }

    void set(std::string_view name, Value value) {
        const auto found =
            std::ranges::find(variables, name, &decltype(variables)::value_type::first);
        if (found != variables.end()) {
            found->second = std::move(value);
        } else {
            variables.emplace_back(name, std::move(value));
        }
    }
    // Counts in `num_seen` how many variables were looked at, or scopes without any.
    [[nodiscard]] const Value* find(std::string_view name, std::size_t& num_seen) const {
        num_seen = 0;
        for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
            num_seen += 1 + scope->variables.size();
            const auto found =
                std::ranges::find(scope->variables, name, &decltype(variables)::value_type::first);
            if (found != scope->variables.end()) return &found->second;
        }
        return nullptr;
    }
};

struct Macro {
    const MacroDefinition* definition = nullptr;
    const Scope* scope = nullptr;  // it was defined in
};

// Represents a loop under way, which is what `loop` is. Source: Jinja 3.1, runtime.py, LoopContext,
// which looks one item ahead where the template asks for it, and through all of them where it asks
// for their number.
struct Loop {
    const Target* target = nullptr;
    const Expr* condition = nullptr;  // which items have turns; null: all, or all that are left
    const Scope* scope = nullptr;     // around it
    std::vector<Value> items{};
    std::size_t next = 0;          // index in `items`
    std::optional<Value> after{};  // the next turn's, if somebody looked
    Value current{};
    Value before{};
    std::int64_t index0 = -1;
    std::optional<std::vector<Value>> last_changed{};
    bool is_captured = false;  // `loop` itself was taken as a value
};

}  // namespace pitstop::jinja
