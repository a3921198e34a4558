#include "jinja/macro_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pitstop::jinja {

Result<> bind_arguments(
    const MacroDefinition& definition,
    Args args,
    Scope& scope,
    Budget& budget,
    const EvalDefault& eval_default
) {
    const std::size_t num_params = definition.params.size();
    const std::size_t num_positional = std::min(args.positional.size(), num_params);
    for (std::size_t i = 0; i < num_positional; ++i) {
        scope.set(definition.params[i], args.positional[i]);
    }
    const std::size_t first_default = num_params - definition.defaults.size();
    for (std::size_t i = num_positional; i < num_params; ++i) {
        const std::string& param = definition.params[i];
        RETURN_IF_ERROR(budget.scan(sizeof(std::string) * (1 + args.named.size())));
        const auto named =
            std::ranges::find(args.named, param, &decltype(args.named)::value_type::first);
        if (named != args.named.end()) {
            scope.set(param, std::move(named->second));
            args.named.erase(named);
        } else if (i >= first_default) {
            ASSIGN_OR_RETURN(
                Value value, eval_default(*definition.defaults[i - first_default], scope)
            );
            scope.set(param, std::move(value));
        } else {
            scope.set(
                param, Value::undefined(fmt::format("parameter '{}' was not provided", param))
            );
        }
    }
    if (definition.takes_more_named) {
        Mapping more;
        RETURN_IF_ERROR(budget.items(args.named.size(), kEntryBytes));
        for (auto& [name, value] : args.named) more.insert(name, std::move(value));
        scope.set("kwargs", Value::mapping(std::move(more)));
    } else if (!args.named.empty()) {
        return type_error(
            "the macro '{}' takes no argument '{}'", definition.name, args.named.front().first
        );
    }
    if (definition.takes_more_positional) {
        RETURN_IF_ERROR(budget.items(args.positional.size(), sizeof(Value)));
        const auto begin = args.positional.begin() + static_cast<std::ptrdiff_t>(num_positional);
        scope.set("varargs", Value::tuple({begin, args.positional.end()}));
    } else if (args.positional.size() > num_params) {
        return type_error("the macro '{}' takes at most {} arguments", definition.name, num_params);
    }
    return Ok{};
}

}  // namespace pitstop::jinja
