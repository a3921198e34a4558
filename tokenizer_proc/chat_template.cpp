#include "tokenizer_proc/chat_template.h"

#include "jinja/json.h"
#include "jinja/python_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {
namespace {

using jinja::Mapping;
using jinja::Value;

// Reads the file's text; nothing if the file does not exist.
Result<std::optional<std::string>> read_file(const std::filesystem::path& path) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error) return std::optional<std::string>{};
    if (size > ChatTemplate::kFileBytesMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "{} has {} bytes; accepted are {}",
            path.string(),
            size,
            ChatTemplate::kFileBytesMax
        );
    }
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) return make_error(ErrorCode::kUnavailable, "cannot read {}", path.string());
    return std::optional(std::move(text).str());
}

const std::string* text_of(const Mapping& mapping, std::string_view name) {
    const Value* value = mapping.find(name);
    if (value == nullptr || value->as_text() == nullptr) return nullptr;
    return &value->as_text()->bytes;
}

// Joins the parts {"type": "text", "text": T}, ... into one text.
Result<std::string> joined_parts(const std::vector<Value>& parts, std::size_t message) {
    std::string all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const Mapping* part = parts[i].as_mapping();
        const std::string* text = part == nullptr ? nullptr : text_of(*part, "text");
        const std::string* type = part == nullptr ? nullptr : text_of(*part, "type");
        if (text == nullptr || (type != nullptr && *type != "text")) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "messages[{}].content[{}]: the model takes text: {{\"type\": \"text\", \"text\": "
                "...}}",
                message,
                i
            );
        }
        if (i != 0) all += '\n';
        all += *text;
    }
    return all;
}

// Replaces the text in {"function": {"arguments": "{...}"}} by the object that it contains, if any.
Value with_arguments(const Value& call) {
    const Mapping* mapping = call.as_mapping();
    const Value* function =
        mapping == nullptr ? nullptr : mapping->find(std::string_view("function"));
    const Mapping* of_function = function == nullptr ? nullptr : function->as_mapping();
    const std::string* text = of_function == nullptr ? nullptr : text_of(*of_function, "arguments");
    if (text == nullptr) return call;
    const Result<Value> arguments = jinja::parse_json(*text);
    if (!arguments || arguments->as_mapping() == nullptr) return call;
    Mapping new_function = *of_function;
    new_function.insert("arguments", *arguments);
    Mapping new_call = *mapping;
    new_call.insert("function", Value::mapping(std::move(new_function)));
    return Value::mapping(std::move(new_call));
}

enum class Arguments { kAsObjects, kAsGiven };

Result<Value> prepared_message(
    const Value& value, std::size_t index, bool takes_parts, Arguments arguments
) {
    const Mapping* message = value.as_mapping();
    if (message == nullptr || text_of(*message, "role") == nullptr) {
        return make_error(
            ErrorCode::kInvalidArgument, "messages[{}] is not an object with a role", index
        );
    }
    Mapping out = *message;
    const Value* calls = message->find(std::string_view("tool_calls"));
    const bool has_calls = calls != nullptr && calls->as_sequence() != nullptr;
    const Value* content = message->find(std::string_view("content"));
    if (content != nullptr && content->is_none() && !has_calls) {
        out.insert("content", Value::text(""));
    } else if (content != nullptr && content->as_sequence() != nullptr && !takes_parts) {
        ASSIGN_OR_RETURN(std::string text, joined_parts(content->as_sequence()->items, index));
        out.insert("content", Value::text(std::move(text)));
    }
    if (has_calls && arguments == Arguments::kAsObjects) {
        std::vector<Value> new_calls;
        for (const Value& call : calls->as_sequence()->items) {
            new_calls.push_back(with_arguments(call));
        }
        out.insert("tool_calls", Value::list(std::move(new_calls)));
    }
    return Value::mapping(std::move(out));
}

// Returns the special tokens and the variables, with the messages in the form that the template
// expects.
Result<Mapping> prepared(
    const Mapping& special_tokens, const Mapping& variables, bool takes_parts, Arguments arguments
) {
    const Value* messages = variables.find(std::string_view("messages"));
    if (messages == nullptr || messages->as_sequence() == nullptr ||
        messages->as_sequence()->items.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument, "messages must be a list of at least one message"
        );
    }
    std::vector<Value> out;
    for (const Value& message : messages->as_sequence()->items) {
        ASSIGN_OR_RETURN(Value one, prepared_message(message, out.size(), takes_parts, arguments));
        out.push_back(std::move(one));
    }
    Mapping all = special_tokens;
    // Templates test whether these variables are none, not only whether they are defined.
    for (const std::string_view name : {"tools", "documents"}) {
        all.insert(std::string(name), Value::none());
    }
    all.insert("add_generation_prompt", Value::boolean(false));
    for (const auto& [name, value] : variables.entries()) all.insert(name.as_text()->bytes, value);
    all.insert("messages", Value::list(std::move(out)));
    return all;
}

// Returns whether some message has tool calls.
bool has_calls(const Mapping& variables) {
    const Value* messages = variables.find("messages");
    return std::ranges::any_of(messages->as_sequence()->items, [](const Value& message) {
        return message.as_mapping()->find("tool_calls") != nullptr;
    });
}

// A tag that some templates look for by this name. Source: transformers 5.24,
// utils/chat_template_utils.py, render_jinja_template.
constexpr std::string_view kTag = "CONTINUE_FINAL_MESSAGE_TAG ";

// Appends the tag to the text of the last message: to its content, or to the content's last part
// with text. Returns the text without the tag.
Result<std::string> tag_final_message(Mapping& variables) {
    std::vector<Value> messages =
        variables.find(std::string_view("messages"))->as_sequence()->items;
    Mapping last = *messages.back().as_mapping();
    std::optional<std::string> text;
    if (const std::string* content = text_of(last, "content")) {
        text = *content;
        last.insert("content", Value::text(*text + std::string(kTag)));
    } else if (const Value* parts = last.find(std::string_view("content"));
               parts != nullptr && parts->as_sequence() != nullptr) {
        std::vector<Value> new_parts = parts->as_sequence()->items;
        const auto of_part = [](const Value& part) {
            const Mapping* mapping = part.as_mapping();
            return mapping == nullptr ? nullptr : text_of(*mapping, "text");
        };
        const auto place = std::find_if(new_parts.rbegin(), new_parts.rend(), of_part);
        if (place != new_parts.rend()) {
            text = *of_part(*place);
            Mapping part = *place->as_mapping();
            part.insert("text", Value::text(*text + std::string(kTag)));
            *place = Value::mapping(std::move(part));
            last.insert("content", Value::list(std::move(new_parts)));
        }
    }
    if (!text) {
        return make_error(
            ErrorCode::kInvalidArgument, "continue_final_message: the last message has no text"
        );
    }
    messages.back() = Value::mapping(std::move(last));
    variables.insert("messages", Value::list(std::move(messages)));
    return *std::move(text);
}

// Cuts the prompt where the template put the end of the last message, whose text is `text`. A
// template that trims contents trims the tag, too; then white space before the cut is removed.
Result<std::string> cut_at_tag(std::string prompt, std::string_view text) {
    constexpr std::string_view kTrimmed = kTag.substr(0, kTag.size() - 1);
    const std::size_t at = prompt.rfind(kTrimmed);
    if (at != std::string::npos) {
        std::string_view kept = std::string_view(prompt).substr(0, at);
        const std::string_view stripped = jinja::strip(kept, jinja::StripSide::kRight);
        if (prompt.compare(at, kTag.size(), kTag) != 0) kept = stripped;
        if (stripped.ends_with(jinja::strip(text, jinja::StripSide::kBoth))) {
            prompt.resize(kept.size());
            return prompt;
        }
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "continue_final_message: the template changes the last message, so it is not in the prompt"
    );
}

// Returns whether a loop iterates over the parts of a content: "for part in message['content']".
bool loops_over_content(std::string_view text) {
    for (std::size_t at = text.find("for "); at != std::string_view::npos;
         at = text.find("for ", at + 1)) {
        const std::string_view tag = text.substr(at, text.find("%}", at) - at);
        const std::size_t in = tag.find(" in ");
        if (in != std::string_view::npos && tag.find("content", in) != std::string_view::npos) {
            return true;
        }
    }
    return false;
}

}  // namespace

Result<ChatTemplate::Source> ChatTemplate::parse(std::string_view text) {
    ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::parse(text));
    return Source{std::move(parsed), loops_over_content(text)};
}

Result<> ChatTemplate::read_template(const std::string& name, std::string_view text) {
    if (name != "default" && name != "tool_use") return Ok{};
    Result<Source> source = parse(text);
    if (!source) {
        return make_error(
            source.error().code, "the model's chat template: {}", source.error().message
        );
    }
    (name == "default" ? default_ : tool_use_) = *std::move(source);
    return Ok{};
}

Result<> ChatTemplate::read_config(const std::string& text) {
    ASSIGN_OR_RETURN(const Value config, jinja::parse_json(text));
    if (config.as_mapping() == nullptr) {
        return make_error(ErrorCode::kInvalidArgument, "tokenizer_config.json is not an object");
    }
    for (const auto& [key, value] : config.as_mapping()->entries()) {
        const std::string& name = key.as_text()->bytes;
        if (!name.ends_with("_token") && name != "additional_special_tokens") continue;
        if (value.as_mapping() != nullptr) {
            const std::string* content = text_of(*value.as_mapping(), "content");
            if (content != nullptr) special_tokens_.insert(name, Value::text(*content));
        } else if (value.as_text() != nullptr || value.as_sequence() != nullptr) {
            special_tokens_.insert(name, value);
        }
    }
    if (default_) return Ok{};  // chat_template.jinja has precedence
    const Value* given = config.as_mapping()->find(std::string_view("chat_template"));
    if (given == nullptr || given->is_none()) return Ok{};
    if (given->as_text() != nullptr) return read_template("default", given->as_text()->bytes);
    const jinja::Sequence* several = given->as_sequence();
    if (several == nullptr) {
        return make_error(ErrorCode::kInvalidArgument, "chat_template is neither text nor a list");
    }
    for (const Value& one : several->items) {
        const Mapping* mapping = one.as_mapping();
        const std::string* name = mapping == nullptr ? nullptr : text_of(*mapping, "name");
        const std::string* source = mapping == nullptr ? nullptr : text_of(*mapping, "template");
        if (name == nullptr || source == nullptr) {
            return make_error(
                ErrorCode::kInvalidArgument, "an entry of chat_template has no name and template"
            );
        }
        RETURN_IF_ERROR(read_template(*name, *source));
    }
    return Ok{};
}

std::shared_ptr<const ChatTemplate> ChatTemplate::load(const std::string& model_dir) {
    auto loaded = std::make_shared<ChatTemplate>();
    const auto read = [&]() -> Result<> {
        const std::filesystem::path dir(model_dir);
        ASSIGN_OR_RETURN(const auto file, read_file(dir / "chat_template.jinja"));
        if (file) RETURN_IF_ERROR(loaded->read_template("default", *file));
        ASSIGN_OR_RETURN(const auto config, read_file(dir / "tokenizer_config.json"));
        if (config) RETURN_IF_ERROR(loaded->read_config(*config));
        return Ok{};
    };
    if (const Result<> done = read(); !done) {
        loaded->problem_ = done.error();
    } else if (!loaded->default_) {
        loaded->problem_ = make_error(
            ErrorCode::kUnsupported,
            "the model has no chat template: neither chat_template.jinja nor chat_template in "
            "tokenizer_config.json; a request may bring one"
        );
    }
    return loaded;
}

Result<std::string> ChatTemplate::render_with(
    const Source& source,
    const Mapping& variables,
    const Chat& chat,
    const std::tm& now,
    const jinja::Limits& limits
) const {
    std::string final_text;
    const auto prepare = [&](Arguments arguments) -> Result<Mapping> {
        ASSIGN_OR_RETURN(
            Mapping all, prepared(special_tokens_, variables, source.takes_parts, arguments)
        );
        if (!chat.continue_final_message) return all;
        ASSIGN_OR_RETURN(final_text, tag_final_message(all));
        return all;
    };
    ASSIGN_OR_RETURN(Mapping all, prepare(Arguments::kAsObjects));
    Result<std::string> prompt = source.parsed.render(all, now, limits);
    if (!prompt && prompt.error().code == ErrorCode::kInvalidArgument && has_calls(all)) {
        // Some templates need the arguments of tool calls as the original text.
        ASSIGN_OR_RETURN(all, prepare(Arguments::kAsGiven));
        Result<std::string> second = source.parsed.render(all, now, limits);
        if (second) prompt = std::move(second);
    }
    if (!prompt) {
        return make_error(prompt.error().code, "the chat template: {}", prompt.error().message);
    }
    if (!chat.continue_final_message) return prompt;
    return cut_at_tag(*std::move(prompt), final_text);
}

Result<std::string> ChatTemplate::render(
    const Chat& chat, const std::tm& now, const Interrupt& interrupt
) const {
    ASSIGN_OR_RETURN(const Value variables, jinja::parse_json(chat.variables));
    if (variables.as_mapping() == nullptr) {
        return make_error(ErrorCode::kInvalidArgument, "the variables of a chat must be an object");
    }
    const Mapping& mapping = *variables.as_mapping();
    const Value* prompted = mapping.find(std::string_view("add_generation_prompt"));
    if (chat.continue_final_message && prompted != nullptr && prompted->is_true()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "continue_final_message and add_generation_prompt exclude each other"
        );
    }
    if (!chat.chat_template.empty()) {
        if (chat.chat_template.size() > kForeignBytesMax) {
            return make_error(
                ErrorCode::kTooLarge,
                "the chat template has {} bytes; one that comes with a request has at most {}",
                chat.chat_template.size(),
                kForeignBytesMax
            );
        }
        ASSIGN_OR_RETURN(const Source source, parse(chat.chat_template));
        const jinja::Limits limits{
            .steps_max = kForeignStepsMax,
            .built_bytes_max = kForeignBuiltBytesMax,
            .interrupt = interrupt};
        return render_with(source, mapping, chat, now, limits);
    }
    if (problem_) return *problem_;
    const Value* tools = mapping.find(std::string_view("tools"));
    const bool has_tools = tools != nullptr && tools->is_true();
    return render_with(
        has_tools && tool_use_ ? *tool_use_ : *default_,
        mapping,
        chat,
        now,
        jinja::Limits{.interrupt = interrupt}
    );
}

}  // namespace pitstop::tokenizer
