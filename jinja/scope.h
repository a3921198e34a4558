// The variables that statements see, and the other objects that a rendering owns.
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

// The scope of a macro's body, a turn of a loop, ... Names are looked up outwards; an assignment
// stays in its scope.
struct Scope {
    const Scope* parent = nullptr;
    std::vector<std::pair<std::string_view, Value>>
        variables{};  // the names belong to the tree, which outlives the scope
    // A macro was defined in this scope or further inside, so the scope lives as long as the
    // rendering. `mutable`, because other access to such scopes is const.
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
    // Adds to `num_seen` the number of variables compared, and 1 for each scope without variables.
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
    const Scope* scope = nullptr;  // the scope of its definition
};

// A running loop: the value of `loop`. Source: Jinja 3.1, runtime.py, LoopContext. Looks one item
// ahead if the template asks for the next item, and through all items if it asks for their number.
struct Loop {
    const Target* target = nullptr;
    const Expr* condition = nullptr;  // selects the items that have turns; null: all
    const Scope* scope = nullptr;     // the enclosing scope
    std::vector<Value> items{};
    std::size_t next = 0;          // index in `items`
    std::optional<Value> after{};  // the next turn's item, if the template looked ahead
    Value current{};
    Value before{};
    std::int64_t index0 = -1;
    std::optional<std::vector<Value>> last_changed{};
    bool is_captured = false;  // the template used `loop` itself as a value
};

}  // namespace pitstop::jinja
