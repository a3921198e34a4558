#include "jinja/kept_objects.h"

#include <utility>

namespace pitstop::jinja {

Result<Value> KeptObjects::make_namespace(Args args, Budget& budget) {
    auto space = std::make_unique<Namespace>();
    if (args.positional.size() > 1) return type_error("namespace takes one mapping");
    if (!args.positional.empty()) {
        const Mapping* mapping = args.positional[0].as_mapping();
        if (mapping == nullptr) return type_error("namespace takes a mapping");
        RETURN_IF_ERROR(budget.items(mapping->size(), kEntryBytes));
        space->attributes = *mapping;
    }
    RETURN_IF_ERROR(budget.bytes(sizeof(Namespace)));
    RETURN_IF_ERROR(budget.items(args.named.size(), kEntryBytes));
    for (auto& [name, value] : args.named) {
        space->attributes.insert(std::move(name), std::move(value));
    }
    namespaces_.push_back(std::move(space));
    return Value::of(namespaces_.back().get());
}

}  // namespace pitstop::jinja
