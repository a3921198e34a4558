#include "http_proc/format/control_fields.h"

#include "http_proc/format/json_body.h"

#include <nlohmann/json.hpp>

#include <set>

namespace pitstop::http {

Result<nlohmann::json> control_fields(const Request& request, Winner winner) {
    ASSIGN_OR_RETURN(nlohmann::json fields, parse_json_object(request.body));
    const nlohmann::json body = winner == Winner::kBody ? fields : nlohmann::json::object();
    std::set<std::string_view> seen;
    for (const auto& [name, value] : request.query) {
        if (body.contains(name)) continue;
        if (seen.insert(name).second) {
            fields[name] = value;  // replaces the value of the body
        } else if (nlohmann::json& earlier = fields[name]; earlier.is_array()) {
            earlier.push_back(value);
        } else {
            earlier = nlohmann::json::array({earlier, value});
        }
    }
    return fields;
}

}  // namespace pitstop::http
