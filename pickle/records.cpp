#include "pickle/records.h"

#include <algorithm>
#include <vector>

namespace pitstop::pickle {
namespace {

struct ArgumentCount {
    std::size_t least = 0;
    std::size_t most = 0;
};

std::optional<ArgumentCount> arguments_of(Global global) {
    switch (global) {
        case Global::kRebuildCudaTensor:
            return ArgumentCount{15, 15};
        case Global::kRebuildTensor:
        case Global::kRebuildParameter:
            return ArgumentCount{3, 3};
        case Global::kRebuildTensorV2:
            return ArgumentCount{6, 7};
        case Global::kRebuildTypedStorage:
            return ArgumentCount{2, 2};
        case Global::kRebuildStorageFilename:
            return ArgumentCount{4, 5};
        case Global::kOrderedDict:
            return ArgumentCount{0, 0};
        case Global::kException:
            return ArgumentCount{0, 16};
        default:
            return std::nullopt;
    }
}

}  // namespace

bool is_constructor(Global global) { return arguments_of(global).has_value(); }

std::optional<std::string> flaw_of_arguments(
    const Document& document, Global global, const Node& arguments
) {
    const ArgumentCount count = arguments_of(global).value();
    const std::size_t num = arguments.children.size();
    if (num < count.least || num > count.most) {
        return fmt::format(
            "a constructor with {} arguments; {} to {} are accepted", num, count.least, count.most
        );
    }
    if (global != Global::kException) return std::nullopt;
    for (std::size_t i = 0; i < num; ++i) {
        const Kind kind = document.child(arguments, i).kind;
        if (kind != Kind::kString && kind != Kind::kInt)
            return "an exception with an argument that is not text";
    }
    return std::nullopt;
}

Result<> check_keys(const Document& document) {
    std::vector<std::string_view> keys;
    for (const Node& dict : document.nodes()) {
        if (dict.kind != Kind::kDict) continue;
        keys.clear();
        for (std::size_t i = 0; i < dict.children.size(); i += 2)
            keys.push_back(document.child(dict, i).text);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) {
            return make_error(
                ErrorCode::kMalformed, "pickle: key '{}' appears twice in a dict", shown(*twice)
            );
        }
    }
    return Ok{};
}

std::string shown(std::string_view text) {
    std::string out;
    for (const char c : text.substr(0, 96)) {
        if (c >= 0x20 && c < 0x7f) {
            out += c;
        } else {
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        }
    }
    return out;
}

bool is_nccl_id(const Document& document, const Node& arguments) {
    if (arguments.children.size() != 2) return false;
    const Node& label = document.child(arguments, 0);
    const Node& state = document.child(arguments, 1);
    if (label.global != Global::kNcclUniqueId || state.kind != Kind::kTuple ||
        state.children.size() != 2)
        return false;
    const Node& attributes = document.child(state, 0);
    const Node& bytes = document.child(state, 1);
    return attributes.kind == Kind::kDict && attributes.children.empty() &&
           bytes.kind == Kind::kBytes && bytes.text.size() == kNcclIdBytes;
}

bool is_saved_storage(const Document& document, const Node& id) {
    if (id.kind != Kind::kTuple || id.children.size() != 5) return false;
    const Node& label = document.child(id, 0);
    const Node& storage_class = document.child(id, 1);
    return label.kind == Kind::kString && label.text == "storage" &&
           storage_class.kind == Kind::kGlobal &&
           storage_class.global == Global::kTypedStorageClass &&
           document.child(id, 2).kind == Kind::kString &&
           document.child(id, 3).kind == Kind::kString && document.child(id, 4).kind == Kind::kInt;
}

}  // namespace pitstop::pickle
