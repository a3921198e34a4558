#include "messages/adapters.h"

#include "messages/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace pitstop::messages {
namespace {

constexpr char kTab = '\t';  // no name, digest or path has a tab, because each is a single line
constexpr std::string_view kPinned = "pinned";
constexpr std::string_view kNotPinned = "-";

}  // namespace

std::optional<std::string> invalid_adapter_name(std::string_view name) {
    if (name.empty()) return "the adapter's name is empty; give one";
    if (name.size() > kAdapterNameBytesMax) {
        return fmt::format(
            "the adapter's name has {} bytes; at most {} are accepted",
            name.size(),
            kAdapterNameBytesMax
        );
    }
    return invalid_line("the adapter's name", name);
}

std::optional<std::string> invalid_adapter_name(
    std::string_view name, const std::vector<std::string>& served
) {
    for (const std::string& model : served) {
        if (model.empty() || !name.starts_with(model)) continue;
        const std::string_view rest = name.substr(model.size());
        if (!rest.empty() && rest.front() != ':') continue;
        return fmt::format(
            "the adapter's name is '{}', and the model is served as '{}'; accepted is a name that "
            "is not the model's and does not begin with the model's and a colon",
            name,
            model
        );
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const UnloadAdapter& message) {
    return invalid_adapter_name(message.name);
}

Result<std::vector<LostAdapter>> lost_adapters_of(std::string_view lines) {
    std::vector<LostAdapter> all;
    while (!lines.empty()) {
        const std::size_t end = std::min(lines.find('\n'), lines.size());
        const std::string_view line = lines.substr(0, end);
        lines.remove_prefix(std::min(end + 1, lines.size()));
        std::array<std::string_view, 7> parts{};  // the label is last and may have tabs
        std::string_view rest = line;
        std::size_t num = 0;
        for (; num + 1 < parts.size() && rest.find(kTab) != std::string_view::npos; ++num) {
            parts[num] = rest.substr(0, rest.find(kTab));
            rest.remove_prefix(parts[num].size() + 1);
        }
        parts[num] = rest;
        std::int64_t version = 0;
        const std::string_view number = parts[1];
        const auto read = std::from_chars(number.data(), number.data() + number.size(), version);
        const bool is_known = parts[4] == kPinned || parts[4] == kNotPinned;
        if (num + 1 < parts.size() || read.ec != std::errc{} || version <= 0 || !is_known)
            return make_error(
                ErrorCode::kInvalidArgument, "'{}' does not describe a lost adapter", line
            );
        all.push_back(
            {.adapter =
                 {.name = std::string(parts[0]),
                  .version = Epoch{version},
                  .label = std::string(parts[6]),
                  .digest = std::string(parts[2])},
             .path = std::string(parts[5]),
             .config_digest = std::string(parts[3]),
             .pinned = parts[4] == kPinned}
        );
    }
    return all;
}

std::string line_of(const LostAdapter& lost) {
    const AdapterVersion& version = lost.adapter;
    return fmt::format(
        "{}\t{}\t{}\t{}\t{}\t{}\t{}",
        version.name,
        raw(version.version),
        version.digest,
        lost.config_digest,
        lost.pinned ? kPinned : kNotPinned,
        lost.path,
        version.label
    );
}

}  // namespace pitstop::messages
