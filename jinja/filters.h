// The filters, one table per file; find_filter (builtins.h) searches all tables.
#pragma once

#include "jinja/builtins.h"

#include <span>
#include <string>
#include <utility>

namespace pitstop::jinja {

[[nodiscard]] std::span<const Builtin> text_filters();
[[nodiscard]] std::span<const Builtin> sequence_filters();

// Makes a text that is markup if the original was.
[[nodiscard]] inline Value text_like(const Value& original, std::string text) {
    const Text* given = original.as_text();
    const bool is_markup = given != nullptr && given->is_markup;
    return is_markup ? Value::markup(std::move(text)) : Value::text(std::move(text));
}

}  // namespace pitstop::jinja
