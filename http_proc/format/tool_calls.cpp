#include "http_proc/format/tool_calls.h"

#include "http_proc/format/json_body.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kHermesOpen = "<tool_call>";
constexpr std::string_view kHermesClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]";
constexpr std::string_view kMistralArgs = "[ARGS]";
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kBetweenObjects = " \t\r\n;,";
constexpr std::string_view kNameCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
constexpr std::size_t kToolNameBytesMax = 256;  // including white space before it
constexpr std::size_t kSpaceBytesMax = 256;     // held back where a call may follow

bool is_space(std::string_view text) {
    return text.find_first_not_of(kSpace) == std::string_view::npos;
}

std::string_view without_leading(std::string_view text, std::string_view characters) {
    return text.substr(std::min(text.find_first_not_of(characters), text.size()));
}

// Returns the length of the longest end of `text` that may begin `marker`.
std::size_t overlap(std::string_view text, std::string_view marker) {
    for (std::size_t len = std::min(text.size(), marker.size() - 1); len > 0; --len) {
        if (text.ends_with(marker.substr(0, len))) return len;
    }
    return 0;
}

// Keeps members of objects in their order. Returns nothing if the text is not JSON, or
// nested too deep.
std::optional<OrderedJson> parsed(std::string_view text) {
    if (is_space(text) || !parse_json(text)) return std::nullopt;
    OrderedJson json = OrderedJson::parse(text.begin(), text.end(), nullptr, false);
    if (json.is_discarded()) return std::nullopt;
    return json;
}

std::string dumped(const OrderedJson& json) {
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::optional<ToolCall> call_of(const OrderedJson& json) {
    if (!json.is_object()) return std::nullopt;
    const auto name = json.find("name");
    if (name == json.end() || !name->is_string()) return std::nullopt;
    ToolCall call{.name = name->get<std::string>(), .arguments = "{}", .id = {}};
    auto arguments = json.find("arguments");
    if (arguments == json.end()) arguments = json.find("parameters");
    if (arguments == json.end() || arguments->is_null()) return call;
    if (arguments->is_object()) {
        call.arguments = dumped(*arguments);
        return call;
    }
    // Some models write the object as a string.
    if (!arguments->is_string()) return std::nullopt;
    const auto inner = parsed(arguments->get_ref<const std::string&>());
    if (!inner || !inner->is_object()) return std::nullopt;
    call.arguments = dumped(*inner);
    return call;
}

std::optional<ToolCall> call_of(std::string_view text) {
    const auto json = parsed(text);
    return json ? call_of(*json) : std::nullopt;
}

// Reads the whole list, or returns nothing.
std::vector<ToolCall> calls_of_list(std::string_view text) {
    std::vector<ToolCall> calls;
    const auto json = parsed(text);
    if (!json || !json->is_array()) return {};
    for (const OrderedJson& entry : *json) {
        auto call = call_of(entry);
        if (!call) return {};
        calls.push_back(*std::move(call));
    }
    return calls;
}

}  // namespace

std::optional<ToolFormat> tool_format_named(std::string_view name) {
    const auto found = std::ranges::find(kToolFormats, name, &ToolFormatName::name);
    if (found == kToolFormats.end()) return std::nullopt;
    return found->format;
}

std::optional<ToolFormat> tool_format_in(std::string_view chat_template) {
    const auto has = [&](std::string_view text) {
        return chat_template.find(text) != std::string_view::npos;
    };
    if (has(kMistralOpen)) return ToolFormat::kMistral;
    if (has(kPythonTag)) return ToolFormat::kLlama3;
    const bool is_of_json = has("\"name\"") || has("\\\"name\\\"");
    if (has(kHermesOpen) && is_of_json) return ToolFormat::kHermes;
    return std::nullopt;
}

std::string tool_format_names() {
    std::string names;
    for (const ToolFormatName& one : kToolFormats) {
        if (!names.empty()) names += ", ";
        names += one.name;
    }
    return names;
}

std::optional<std::size_t> JsonEnd::find(std::string_view text) {
    for (; at_ < text.size(); ++at_) {
        const char c = text[at_];
        if (is_in_string_) {
            if (is_escaped_) {
                is_escaped_ = false;
            } else if (c == '\\') {
                is_escaped_ = true;
            } else if (c == '"') {
                is_in_string_ = false;
            }
        } else if (c == '"') {
            is_in_string_ = true;
        } else if (c == '{' || c == '[') {
            ++depth_;
        } else if ((c == '}' || c == ']') && --depth_ <= 0) {
            return at_ + 1;
        }
    }
    return std::nullopt;
}

void ToolCallParser::Part::append(Part next) {
    for (const std::size_t place : next.places) places.push_back(text.size() + place);
    text += next.text;
    std::ranges::move(next.calls, std::back_inserter(calls));
}

ToolCallParser::Part ToolCallParser::append(std::string_view piece) {
    held_ += piece;
    Part part;
    while (!held_.empty() && step(part, /*is_end=*/false) == Step::kAgain) {
    }
    return part;
}

ToolCallParser::Part ToolCallParser::finish() {
    Part part;
    while (!(held_.empty() && opening_.empty()) && step(part, /*is_end=*/true) == Step::kAgain) {
    }
    return part;
}

ToolCallParser::Step ToolCallParser::step(Part& part, bool is_end) {
    if (state_ == State::kRest) {
        part.text += std::exchange(held_, {});
        return Step::kNeedsMore;
    }
    if (state_ != State::kCall) return step_text(part, is_end);
    switch (format_) {
        case ToolFormat::kHermes:
            return step_hermes(part, is_end);
        case ToolFormat::kLlama3:
            return step_llama3(part, is_end);
        case ToolFormat::kMistral:
            break;
    }
    return step_mistral(part, is_end);
}

// Takes the text up to the next marker. White space before a marker, without a word in
// between, is dropped.
ToolCallParser::Step ToolCallParser::step_text(Part& part, bool is_end) {
    if (state_ == State::kStart && format_ == ToolFormat::kLlama3) {
        const std::string_view rest = without_leading(held_, kSpace);
        if (rest.starts_with('{')) {
            begin_call(held_.size() - rest.size());
            return Step::kAgain;
        }
    }
    const std::size_t begin = held_.find(marker());
    if (begin != std::string::npos) {
        std::size_t num_clear = 0;
        const std::string_view before = std::string_view(held_).substr(0, begin);
        if (state_ == State::kText || !is_space(before)) num_clear = begin;
        part.text += before.substr(0, num_clear);
        held_.erase(0, num_clear);
        begin_call(begin - num_clear + marker().size());
        return Step::kAgain;
    }
    const std::size_t num_held = is_end ? 0 : overlap(held_, marker());
    const std::string_view clear = std::string_view(held_).substr(0, held_.size() - num_held);
    if (state_ == State::kStart && is_space(clear)) {
        if (!is_end && clear.size() <= kSpaceBytesMax) return Step::kNeedsMore;
        if (is_end && has_calls_) {
            held_.clear();
            return Step::kNeedsMore;
        }
    }
    state_ = State::kText;
    part.text += clear;
    held_.erase(0, clear.size());
    return Step::kNeedsMore;
}

ToolCallParser::Step ToolCallParser::step_hermes(Part& part, bool is_end) {
    const std::size_t close = held_.find(kHermesClose, searched_);
    searched_ = held_.size() - std::min(held_.size(), kHermesClose.size() - 1);
    if (close == std::string::npos && !is_end) return Step::kNeedsMore;
    auto call = call_of(std::string_view(held_).substr(0, close));
    if (!call) {
        give_up(part, State::kText);
        return Step::kAgain;
    }
    const std::size_t end = close == std::string::npos ? held_.size() : close + kHermesClose.size();
    end_call(part, {*std::move(call)}, end);
    state_ = State::kStart;
    return Step::kAgain;
}

// After the first call, the rest is either more calls or text.
ToolCallParser::Step ToolCallParser::step_llama3(Part& part, bool is_end) {
    const std::string_view rest = without_leading(held_, has_calls_ ? kBetweenObjects : kSpace);
    const std::size_t begin = held_.size() - rest.size();
    if (rest.empty() && !is_end && begin <= kSpaceBytesMax) return Step::kNeedsMore;
    if (rest.empty() && has_calls_) {
        held_.clear();
        return Step::kNeedsMore;
    }
    std::optional<std::size_t> end;
    if (rest.starts_with('{')) {
        end = json_end_.find(rest);
        if (!end && !is_end) return Step::kNeedsMore;
    }
    auto call = end ? call_of(rest.substr(0, *end)) : std::nullopt;
    if (!call) {
        give_up(part, State::kRest);
        return Step::kAgain;
    }
    end_call(part, {*std::move(call)}, begin + *end);
    return Step::kAgain;
}

ToolCallParser::Step ToolCallParser::step_mistral(Part& part, bool is_end) {
    const std::string_view rest = without_leading(held_, kSpace);
    const std::size_t name_len = std::min(rest.find_first_not_of(kNameCharacters), rest.size());
    const std::string_view name = rest.substr(0, name_len);
    std::string_view json = rest.substr(name_len);
    const bool is_args_cut =
        !name.empty() && json.size() < kMistralArgs.size() && kMistralArgs.starts_with(json);
    const bool is_short = held_.size() - json.size() <= kToolNameBytesMax;
    if ((json.empty() || is_args_cut) && is_short && !is_end) return Step::kNeedsMore;
    if (!name.empty() && json.starts_with(kMistralArgs)) {
        json.remove_prefix(kMistralArgs.size());
        if (json.empty() && !is_end) return Step::kNeedsMore;
    }
    std::optional<std::size_t> end;
    if (json.starts_with(name.empty() ? '[' : '{')) {
        end = json_end_.find(json);
        if (!end && !is_end) return Step::kNeedsMore;
    }
    std::vector<ToolCall> calls;
    if (end && name.empty()) {
        calls = calls_of_list(json.substr(0, *end));
    } else if (end) {
        const auto arguments = parsed(json.substr(0, *end));
        if (arguments && arguments->is_object())
            calls.push_back({.name = std::string(name), .arguments = dumped(*arguments), .id = {}});
    }
    if (calls.empty()) {
        give_up(part, State::kText);
        return Step::kAgain;
    }
    end_call(part, std::move(calls), held_.size() - json.size() + *end);
    state_ = State::kStart;
    return Step::kAgain;
}

std::string_view ToolCallParser::marker() const {
    switch (format_) {
        case ToolFormat::kHermes:
            return kHermesOpen;
        case ToolFormat::kLlama3:
            return kPythonTag;
        case ToolFormat::kMistral:
            break;
    }
    return kMistralOpen;
}

// The marker, with the white space before it, is the first `len` bytes of `held_`.
void ToolCallParser::begin_call(std::size_t len) {
    opening_ = held_.substr(0, len);
    held_.erase(0, len);
    state_ = State::kCall;
}

// The calls are the first `end` bytes of `held_`.
void ToolCallParser::end_call(Part& part, std::vector<ToolCall> calls, std::size_t end) {
    held_.erase(0, end);
    opening_.clear();
    json_end_ = {};
    searched_ = 0;
    has_calls_ = true;
    part.places.insert(part.places.end(), calls.size(), part.text.size());
    std::ranges::move(calls, std::back_inserter(part.calls));
}

// The marker did not begin a call: it is text, and the bytes after it are parsed again.
void ToolCallParser::give_up(Part& part, State next) {
    part.text += std::exchange(opening_, {});
    json_end_ = {};
    searched_ = 0;
    state_ = next;
}

}  // namespace pitstop::http
