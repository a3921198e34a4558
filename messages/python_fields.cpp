// pitstop_python_fields writes the fields of the Python client's dataclasses from the messages'
// field lists, between the markers of a module:
//
//     # begin: RequestCounts (written by pitstop_python_fields)
//     prompt_tokens: int = 0  # length of the prompt
//     # end
//
//   pitstop_python_fields --write client/python/pitstop/messages.py  update the module
//   pitstop_python_fields --check client/python/pitstop/messages.py  exit code 1 if it differs
//
// A marker may leave out a field: "# begin: OutputChunk, without key (written by ...)".
#include "base/flags.h"
#include "base/mapped_file.h"
#include "messages/all_messages.h"
#include "messages/door_envelope.h"
#include "messages/field_kinds.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pitstop::messages {
namespace {

constexpr std::string_view kBegin = "# begin: ";
constexpr std::string_view kWriter = " (written by pitstop_python_fields)\n";
constexpr std::string_view kEnd = "# end\n";
constexpr std::size_t kModuleBytesMax = std::size_t{1} << 20;
constexpr std::size_t kLineLen = 120;  // ruff's limit in pyproject.toml

// Returns the Python class of a struct. DraftCounts remains a map, because it is rarely used.
std::string python_name(std::string_view name) {
    if (name == "OutputChunk") return "Chunk";
    if (name == "RequestCounts") return "Counts";
    if (name == "DraftCounts") return "Dict[str, int]";
    return std::string(name);
}

// A type in Python, and the default of a field of that type.
template <class T>
struct Type;
template <>
struct Type<bool> {
    static std::string name() { return "bool"; }
    static std::string initial(bool value) { return value ? "True" : "False"; }
};
template <class T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) struct Type<T> {
    static std::string name() { return "int"; }
    static std::string initial(T value) { return fmt::format("{}", value); }
};
template <class T>
requires std::is_floating_point_v<T>
struct Type<T> {
    static std::string name() { return "float"; }
    static std::string initial(T value) { return fmt::format("{}", value); }
};
template <>
struct Type<std::string> {
    static std::string name() { return "str"; }
    static std::string initial(const std::string& value) { return fmt::format("\"{}\"", value); }
};
template <class T>
struct Type<std::optional<T>> {
    static std::string name() { return fmt::format("Optional[{}]", Type<T>::name()); }
    static std::string initial(const std::optional<T>&) { return "None"; }
};
template <>
struct Type<std::optional<ErrorCode>> {  // an absent code is an empty text
    static std::string name() { return "str"; }
    static std::string initial(const std::optional<ErrorCode>&) { return "\"\""; }
};
template <class T>
struct Type<std::vector<T>> {
    static std::string name() { return fmt::format("list[{}]", Type<T>::name()); }
    static std::string initial(const std::vector<T>&) { return "field(default_factory=list)"; }
};
template <class K, class V>
struct Type<std::map<K, V>> {
    static std::string name() {
        return fmt::format("Dict[{}, {}]", Type<K>::name(), Type<V>::name());
    }
    static std::string initial(const std::map<K, V>&) { return "field(default_factory=dict)"; }
};
template <class T>
struct Type<RawPart<T>> {
    static std::string name() { return "bytes"; }
    static std::string initial(const RawPart<T>&) { return "b\"\""; }
};
template <NamedEnum E>
struct Type<E> {
    static std::string name() { return "str"; }
    static std::string initial(const E& value) { return fmt::format("\"{}\"", name_of(value)); }
};
template <class E>
requires(std::is_enum_v<E> && !NamedEnum<E>) struct Type<E> {
    static std::string name() { return "int"; }
    static std::string initial(const E& value) {
        return fmt::format("{}", static_cast<std::int64_t>(value));
    }
};
template <Fielded T>
struct Type<T> {
    static std::string name() { return python_name(cpp_name<T>()); }
    static std::string initial(const T&) {
        return fmt::format("field(default_factory={})", name());
    }
};

// Appends a comment's words, wrapped into lines.
void append_comment(std::string& lines, std::string_view indent, std::string_view text) {
    std::string line = fmt::format("{}#", indent);
    while (!text.empty()) {
        const std::size_t len = std::min(text.find(' '), text.size());
        if (line.size() + 1 + len > kLineLen) {
            lines += line + "\n";
            line = fmt::format("{}#", indent);
        }
        line += fmt::format(" {}", text.substr(0, len));
        text.remove_prefix(std::min(len + 1, text.size()));
    }
    lines += line + "\n";
}

template <Fielded T>
std::string fields_of(std::string_view indent, std::string_view without) {
    std::string lines;
    T value;
    value.fields([&](std::string_view name, auto& field, std::string_view meaning) {
        if (name == without) return;
        using Field = std::remove_cvref_t<decltype(field)>;
        const std::string line = fmt::format(
            "{}{}: {} = {}", indent, name, Type<Field>::name(), Type<Field>::initial(field)
        );
        if (line.size() + std::string_view("  # ").size() + meaning.size() <= kLineLen) {
            lines += fmt::format("{}  # {}\n", line, meaning);
        } else {
            append_comment(lines, indent, meaning);
            lines += line + "\n";
        }
    });
    return lines;
}

std::string sampling_names(std::string_view indent) {
    std::string lines;
    SamplingParams params;
    params.fields([&](std::string_view name, auto&&...) {
        lines += fmt::format("{}\"{}\",\n", indent, name);
    });
    return lines;
}

// Returns the lines between a marker and its end; empty: the text is no marker.
std::string lines_of(std::string_view what, std::string_view indent) {
    const std::size_t comma = what.find(", without ");
    std::string_view without;
    if (comma != what.npos) without = what.substr(comma + std::string_view(", without ").size());
    const std::string_view name = what.substr(0, comma);
    if (name == "protocol")
        return fmt::format("{}PROTOCOL_VERSION = {}\n", indent, kDoorProtocolVersion);
    if (name == "sampling") return sampling_names(indent);
    std::string lines;
    const auto offer = [&]<class... T>() {
        ((cpp_name<T>() == name ? void(lines = fields_of<T>(indent, without)) : void()), ...);
    };
    offer.template operator(
    )<AdapterVersion,
      Finish,
      HelloReply,
      OutputChunk,
      PromptLogprobs,
      RequestCounts,
      RouteShape,
      RouteSpan,
      Routes,
      Span,
      Supports>();
    return lines;
}

// Returns the module, with the fields between its markers.
Result<std::string> with_fields(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string module, MappedFile::read(path, kModuleBytesMax));
    std::string text;
    std::size_t done = 0;
    for (;;) {
        const std::size_t writer = module.find(kWriter, done);
        if (writer == module.npos) break;
        const std::size_t begin = module.rfind(kBegin, writer);
        const std::size_t end = module.find(kEnd, writer);
        if (begin == module.npos || begin < done || end == module.npos) {
            return make_error(
                ErrorCode::kInvalidArgument, "{}: a marker without its {}...{}", path, kBegin, kEnd
            );
        }
        const std::size_t line = module.rfind('\n', begin) + 1;
        const std::string_view indent = std::string_view(module).substr(line, begin - line);
        const std::string_view what =
            std::string_view(module).substr(begin + kBegin.size(), writer - begin - kBegin.size());
        const std::string lines = lines_of(what, indent);
        if (lines.empty()) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "{}: no message '{}'; python_fields.cpp has the list",
                path,
                what
            );
        }
        const std::size_t head = writer + kWriter.size();
        text += module.substr(done, head - done) + lines + std::string(indent);
        done = end;
    }
    if (done == 0) {
        return make_error(
            ErrorCode::kInvalidArgument, "{} has no line {}NAME{}", path, kBegin, kWriter
        );
    }
    return text + module.substr(done);
}

Result<> write_module(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string module, with_fields(path));
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << module;
    file.close();
    if (!file) return make_error(ErrorCode::kUnavailable, "cannot write {}", path);
    return Ok{};
}

Result<> check_module(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string expected, with_fields(path));
    ASSIGN_OR_RETURN(const std::string actual, MappedFile::read(path, kModuleBytesMax));
    if (actual != expected) {
        return make_error(
            ErrorCode::kDataLoss,
            "{} differs from the messages; run pitstop_python_fields --write {}",
            path,
            path
        );
    }
    return Ok{};
}

int run(int argc, char** argv) {
    FlagSet flags("pitstop_python_fields", "The fields of the Python client's messages.");
    std::string write;
    std::string check;
    flags.add("write", &write, "update this module");
    flags.add("check", &check, "compare with this module");
    if (const auto code = flags.read(argc, argv)) return *code;
    if (write.empty() && check.empty()) {
        std::fputs("pitstop_python_fields: pass --write or --check\n", stderr);
        return 2;
    }
    for (const Result<>& done :
         {write.empty() ? Result<>(Ok{}) : write_module(write),
          check.empty() ? Result<>(Ok{}) : check_module(check)}) {
        if (done) continue;
        std::fprintf(stderr, "pitstop_python_fields: %s\n", done.error().message.c_str());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace pitstop::messages

int main(int argc, char** argv) { return pitstop::messages::run(argc, argv); }
