// Finds out which fields a route accepts. Runs the route's handler in a context without a tree, and
// notes the fields that it reads (format/field_notes.h); the handler ends when it needs the tree.
//
// The type of a field is the one that the handler's parser reads, or the types that it does not
// refuse. The bounds are the least and the largest accepted number.
//
// Thread: one of its own. Nothing is sent, and no state of the server is read or changed.
#pragma once

#include "http_proc/format/field_notes.h"
#include "http_proc/server/router.h"
#include "http_proc/server/server_context.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace pitstop::http {

class RouteProbe {
  public:
    // `options` are those of the server: its flags decide which fields are accepted.
    RouteProbe(const Route& route, const ServerOptions& options);

    // Returns a JSON schema of the object that the route reads.
    [[nodiscard]] nlohmann::ordered_json schema();

  private:
    using Json = nlohmann::json;
    using Note = FieldNotes::Note;

    struct Run {
        bool is_accepted = false;
        std::vector<Note> notes{};
    };
    // A member of the body, or of an object in it.
    struct Place {
        std::string object{};  // empty: the body
        std::string name{};
    };

    [[nodiscard]] Run run(const Json& body) const;
    [[nodiscard]] Json body_with(const Place& place, Json value) const;
    [[nodiscard]] Run run_with(const Place& place, Json value) const;
    [[nodiscard]] bool accepts(const Place& place, const Json& value) const;
    void complete_body();
    [[nodiscard]] nlohmann::ordered_json schema_of(const std::string& object);
    [[nodiscard]] nlohmann::ordered_json schema_of(const Note& note);
    [[nodiscard]] nlohmann::ordered_json schema_of_any(const Place& place);
    void add_integer_bounds(const Place& place, nlohmann::ordered_json& schema) const;
    void add_number_bounds(const Place& place, nlohmann::ordered_json& schema) const;
    void add_words(const Place& place, nlohmann::ordered_json& schema) const;

    const Route& route_;
    mutable ServerContext context_;
    Json body_ = Json::object();  // has the members that the route requires
    bool is_body_accepted_ = false;
};

}  // namespace pitstop::http
