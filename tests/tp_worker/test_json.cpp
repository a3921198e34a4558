#include "tests/tp_worker/test_json.h"

#include "tests/source_dir.h"

#include <filesystem>
#include <fstream>

namespace pitstop::tp_worker {

Json load_json(const std::string& path) {
    return Json::parse(std::ifstream(std::filesystem::path(source_dir()) / path));
}

Json parse_json(std::string_view text) { return Json::parse(text); }

std::string text_of(const Json& json) { return json.dump(); }

std::vector<TokenId> ids_of(const Json& json) {
    std::vector<TokenId> ids;
    for (const int id : json) ids.push_back(static_cast<TokenId>(id));
    return ids;
}

}  // namespace pitstop::tp_worker
