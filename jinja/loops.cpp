#include "jinja/loops.h"

#include "jinja/comparison.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::jinja {
namespace {

Result<bool> look_ahead(Loop& loop, const PullItem& pull) {
    if (!loop.after) {
        ASSIGN_OR_RETURN(loop.after, pull(loop));
    }
    return loop.after.has_value();
}

Result<std::int64_t> length_of(Loop& loop, const PullItem& pull) {
    const std::int64_t num_seen = loop.index0 + 1 + (loop.after ? 1 : 0);
    if (loop.condition == nullptr) {
        return num_seen + static_cast<std::int64_t>(loop.items.size() - loop.next);
    }
    std::vector<Value> rest;
    for (;;) {
        ASSIGN_OR_RETURN(std::optional<Value> item, pull(loop));
        if (!item) break;
        rest.push_back(*std::move(item));
    }
    // The later items are known to pass the condition, which must not be evaluated again.
    const auto count = static_cast<std::int64_t>(rest.size());
    loop.condition = nullptr;
    loop.items = std::move(rest);
    loop.next = 0;
    return num_seen + count;
}

}  // namespace

Result<Value> loop_attribute(Loop& loop, std::string_view name, const PullItem& pull) {
    if (name == "index") return Value::integer(loop.index0 + 1);
    if (name == "index0") return Value::integer(loop.index0);
    if (name == "first") return Value::boolean(loop.index0 == 0);
    if (name == "depth") return Value::integer(1);
    if (name == "depth0") return Value::integer(0);
    if (name == "last") {
        ASSIGN_OR_RETURN(const bool has_next, look_ahead(loop, pull));
        return Value::boolean(!has_next);
    }
    if (name == "length" || name == "revindex" || name == "revindex0") {
        ASSIGN_OR_RETURN(const std::int64_t length, length_of(loop, pull));
        if (name == "length") return Value::integer(length);
        return Value::integer(length - loop.index0 - (name == "revindex" ? 0 : 1));
    }
    if (name == "previtem") {
        return loop.index0 == 0 ? Value::undefined("there is no previous item") : loop.before;
    }
    if (name == "nextitem") {
        ASSIGN_OR_RETURN(const bool has_next, look_ahead(loop, pull));
        return has_next ? *loop.after : Value::undefined("there is no next item");
    }
    if (name == "cycle" || name == "changed") {
        loop.is_captured = true;
        const bool is_cycle = name == "cycle";
        return Value::of(LoopMethod{
            &loop, is_cycle ? LoopMethod::Which::kCycle : LoopMethod::Which::kChanged});
    }
    return Value::undefined(fmt::format("'LoopContext object' has no attribute '{}'", name));
}

Result<Value> call_loop(const LoopMethod& method, Args args, Budget& budget) {
    Loop& loop = *method.loop;
    if (!args.named.empty()) return type_error("a loop's method takes no named arguments");
    if (method.which == LoopMethod::Which::kCycle) {
        if (args.positional.empty()) return type_error("no items for cycling given");
        const auto count = static_cast<std::int64_t>(args.positional.size());
        return args.positional[static_cast<std::size_t>(loop.index0 % count)];
    }
    bool is_changed = true;
    if (loop.last_changed) {
        RETURN_IF_ERROR(
            budget.items(loop.last_changed->size() + args.positional.size(), sizeof(Value))
        );
        ASSIGN_OR_RETURN(
            const bool is_equal,
            equals(Value::tuple(*loop.last_changed), Value::tuple(args.positional), budget)
        );
        is_changed = !is_equal;
    }
    if (is_changed) loop.last_changed = std::move(args.positional);
    return Value::boolean(is_changed);
}

}  // namespace pitstop::jinja
