#include "tokenizer_proc/tokenizer_config.h"

#include "base/mapped_file.h"
#include "jinja/json.h"
#include "tokenizer_proc/chat_template.h"
#include "tokenizer_proc/end_token.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {
namespace {

using jinja::Mapping;
using jinja::Value;

// Reads the file's text; nothing if the file does not exist.
Result<std::optional<std::string>> read_text(const std::string& path, std::size_t bytes_max) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return std::optional<std::string>{};
    ASSIGN_OR_RETURN(std::string text, MappedFile::read(path, bytes_max));
    return std::optional(std::move(text));
}

const Value* member(const Value& value, std::string_view name) {
    return value.as_mapping() == nullptr ? nullptr : value.as_mapping()->find(name);
}

// Replaces each token in its long form, {"content": "</s>", "lstrip": false, ...}, by its text.
// NOLINTNEXTLINE(misc-no-recursion): as deep as JSON may be, kJsonDepthMax.
Value with_plain_tokens(const Value& value) {
    if (const jinja::Sequence* list = value.as_sequence()) {
        std::vector<Value> items;
        for (const Value& item : list->items) items.push_back(with_plain_tokens(item));
        return Value::list(std::move(items));
    }
    if (value.as_mapping() == nullptr) return value;
    if (const Value* content = member(value, "content"); content && content->as_text() != nullptr)
        return *content;
    Mapping plain;
    for (const auto& [key, entry] : value.as_mapping()->entries())
        plain.insert(key.as_text()->bytes, with_plain_tokens(entry));
    return Value::mapping(std::move(plain));
}

// Returns the template of a config, which may have one, several by name, or none.
std::optional<Value> template_of(const Mapping& config) {
    const Value* given = config.find(std::string_view("chat_template"));
    if (given == nullptr || given->as_sequence() == nullptr)
        return given == nullptr ? std::nullopt : std::optional(*given);
    for (const Value& one : given->as_sequence()->items) {
        const Value* name = member(one, "name");
        const Value* text = member(one, "template");
        if (name == nullptr || text == nullptr || name->as_text() == nullptr) continue;
        if (name->as_text()->bytes == "default") return *text;
    }
    return std::nullopt;
}

}  // namespace

Result<std::string> read_tokenizer_config(const std::string& model_dir) {
    const std::string path = model_dir + "/tokenizer_config.json";
    ASSIGN_OR_RETURN(const auto text, read_text(path, kTokenizerConfigBytesMax));
    Result<Value> config = jinja::parse_json(text.value_or("{}"));
    if (!config || config->as_mapping() == nullptr) {
        return make_error(
            ErrorCode::kMalformed,
            "'{}': {}",
            path,
            config ? "it is not an object" : config.error().message
        );
    }
    const std::string template_path = model_dir + "/chat_template.jinja";
    ASSIGN_OR_RETURN(const auto own_file, read_text(template_path, ChatTemplate::kFileBytesMax));
    std::optional<Value> chat_template = template_of(*config->as_mapping());
    if (own_file) chat_template = Value::text(*own_file);

    Mapping told;
    for (const auto& [key, value] : config->as_mapping()->entries()) {
        const std::string& name = key.as_text()->bytes;
        if (name == "vocab_file" || name == "merges_file" || name == "chat_template") continue;
        told.insert(name, with_plain_tokens(value));
    }
    if (const Value* name = told.find(std::string_view("tokenizer_class"));
        name == nullptr || name->as_text() == nullptr)
        told.insert("tokenizer_class", Value::text("PreTrainedTokenizerFast"));
    if (chat_template) told.insert("chat_template", *std::move(chat_template));
    jinja::Budget budget(jinja::Limits{});
    return jinja::to_json(Value::mapping(std::move(told)), {}, budget);
}

}  // namespace pitstop::tokenizer
