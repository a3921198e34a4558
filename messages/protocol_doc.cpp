// pitstop_protocol_doc prints the tables of docs/protocol.md from the messages' field lists, or
// writes them into the page, between the page's markers.
//
//   pitstop_protocol_doc                           print
//   pitstop_protocol_doc --write docs/protocol.md  update the page
//   pitstop_protocol_doc --check docs/protocol.md  exit code 1 if the page differs
#include "base/flags.h"
#include "base/mapped_file.h"
#include "messages/all_messages.h"
#include "messages/field_kinds.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pitstop::messages {
namespace {

constexpr std::string_view kBegin = "<!-- begin: written by pitstop_protocol_doc -->\n";
constexpr std::string_view kEnd = "<!-- end -->\n";
constexpr std::size_t kPageBytesMax = std::size_t{1} << 20;

// Describes a type to readers who use another language.
template <class T>
struct Type;
template <class T>
std::string type_name() {
    return Type<T>::name();
}
template <>
struct Type<bool> {
    static std::string name() { return "bool"; }
};
template <>
struct Type<std::uint8_t> {
    static std::string name() { return "byte"; }
};
template <>
struct Type<std::int32_t> {
    static std::string name() { return "int32"; }
};
template <>
struct Type<std::int64_t> {
    static std::string name() { return "int64"; }
};
template <>
struct Type<std::uint64_t> {
    static std::string name() { return "uint64"; }
};
template <>
struct Type<float> {
    static std::string name() { return "float32"; }
};
template <>
struct Type<double> {
    static std::string name() { return "float64"; }
};
template <>
struct Type<std::string> {
    static std::string name() { return "str"; }
};
template <class T>
struct Type<std::optional<T>> {
    static std::string name() { return type_name<T>() + ", optional"; }
};
template <class T>
struct Type<std::vector<T>> {
    static std::string name() { return "array of " + type_name<T>(); }
};
template <class T>
struct Type<RawArray<T>> {
    static std::string name() { return "raw frame of " + type_name<T>(); }
};
template <class T>
struct Type<RawPart<T>> {
    static std::string name() { return "part of a raw frame of " + type_name<T>(); }
};
template <class K, class V>
struct Type<std::map<K, V>> {
    static std::string name() {
        return fmt::format("map of {} to {}", type_name<K>(), type_name<V>());
    }
};
template <>
struct Type<ErrorCode> {
    static std::string name() { return "error code"; }  // the page lists the values once
};
template <NamedEnum E>
struct Type<E> {
    static std::string name() {
        std::string names;
        for (const std::string_view name : EnumNames<E>::kNames) {
            names += fmt::format("{}`{}`", names.empty() ? "" : ", ", name);
        }
        return "one of " + names;
    }
};
template <class E>
requires(std::is_enum_v<E> && !NamedEnum<E>) struct Type<E> {
    static std::string name() { return type_name<std::underlying_type_t<E>>(); }
};
template <Fielded T>
struct Type<T> {
    static std::string name() {
        if constexpr (Message<T>) return fmt::format("[{0}](#{0})", T::kType);
        std::string anchor(cpp_name<T>());
        for (char& c : anchor) {
            if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        }
        return fmt::format("[{}](#{})", cpp_name<T>(), anchor);
    }
};

// Describes a field's default. An empty text, array or map and an absent optional need no
// description.
template <class T>
std::string default_of(const T&) {
    return "";
}
std::string default_of(const bool& value) { return value ? "true" : "false"; }
std::string default_of(const std::int32_t& value) { return fmt::format("{}", value); }
std::string default_of(const std::int64_t& value) { return fmt::format("{}", value); }
std::string default_of(const std::uint64_t& value) { return fmt::format("{}", value); }
std::string default_of(const double& value) { return fmt::format("{}", value); }
template <NamedEnum E>
std::string default_of(const E& value) {
    return std::string(name_of(value));
}

class Page {
  public:
    template <Message T>
    void add_message() {
        text_ += fmt::format("### `{}`\n\n{}\n\n", T::kType, T::kAbout);
        add_table<T>();
    }
    // Returns the messages, followed by the structs that are parts of messages, once each.
    [[nodiscard]] std::string text() const {
        return text_ + "## Parts\n\nMaps inside messages.\n\n" + parts_;
    }
    void add_error_codes() {
        text_ += "## Error codes\n\n";
        std::string line;
        for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
            line += fmt::format("{}`{}`", i == 0 ? "" : ", ", name_of(static_cast<ErrorCode>(i)));
        }
        text_ += line + "\n\n## Messages\n\n";
    }

  private:
    template <Fielded T>
    void add_table() {
        std::string table = "| field | type | default | meaning |\n|---|---|---|---|\n";
        T value;
        value.fields([&](std::string_view name, auto& field, std::string_view meaning) {
            using Field = std::remove_cvref_t<decltype(field)>;
            table += fmt::format(
                "| `{}` | {} | {} | {} |\n", name, type_name<Field>(), default_of(field), meaning
            );
            find_parts<Field>();
        });
        // find_parts may have added to parts_ in between, and a table must not be interrupted.
        (Message<T> ? text_ : parts_) +=
            (Message<T> ? "" : fmt::format("### {}\n\n", cpp_name<T>())) + table + "\n";
    }
    template <class T>
    void find_parts() {
        if constexpr (Fielded<T>) {
            if (Message<T> || !seen_.insert(cpp_name<T>()).second) return;
            add_table<T>();
        } else if constexpr (requires { typename T::value_type; }) {
            if constexpr (!std::is_same_v<T, std::string>) find_parts<typename T::value_type>();
        }
    }

    std::string text_{};
    std::string parts_{};
    std::set<std::string_view> seen_{};
};

std::string tables() {
    Page page;
    page.add_error_codes();
    AllMessages::for_each([&]<class T>() { page.add_message<T>(); });
    return page.text();
}

// Returns the page, with the tables between its markers.
Result<std::string> with_tables(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string page, MappedFile::read(path, kPageBytesMax));
    const std::size_t begin = page.find(kBegin);
    const std::size_t end = begin == page.npos ? page.npos : page.find(kEnd, begin);
    if (end == page.npos) {
        return make_error(
            ErrorCode::kInvalidArgument, "{} has no line {}...{}", path, kBegin, kEnd
        );
    }
    return page.substr(0, begin + kBegin.size()) + "\n" + tables() + page.substr(end);
}

Result<> write_page(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string page, with_tables(path));
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << page;
    file.close();
    if (!file) return make_error(ErrorCode::kUnavailable, "cannot write {}", path);
    return Ok{};
}

Result<> check_page(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string expected, with_tables(path));
    ASSIGN_OR_RETURN(const std::string actual, MappedFile::read(path, kPageBytesMax));
    if (actual != expected) {
        return make_error(
            ErrorCode::kDataLoss,
            "{} differs from the messages; run pitstop_protocol_doc --write {}",
            path,
            path
        );
    }
    return Ok{};
}

int run(int argc, char** argv) {
    FlagSet flags("pitstop_protocol_doc", "The tables of docs/protocol.md.");
    std::string write;
    std::string check;
    flags.add("write", &write, "update this page");
    flags.add("check", &check, "compare with this page");
    if (const auto code = flags.read(argc, argv)) return *code;
    if (write.empty() && check.empty()) std::fputs(tables().c_str(), stdout);
    for (const Result<>& done :
         {write.empty() ? Result<>(Ok{}) : write_page(write),
          check.empty() ? Result<>(Ok{}) : check_page(check)}) {
        if (done) continue;
        std::fprintf(stderr, "pitstop_protocol_doc: %s\n", done.error().message.c_str());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace pitstop::messages

int main(int argc, char** argv) { return pitstop::messages::run(argc, argv); }
