#include "http_proc/observe/route_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using Value = nlohmann::json;
using Ordered = nlohmann::ordered_json;
using Kind = FieldNotes::Kind;
using Note = FieldNotes::Note;

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kTokenMost = std::numeric_limits<std::int32_t>::max();
constexpr int kRequiredMax = 8;  // members that a route may require

class NoWire : public Wire {
  public:
    void begin(Response /*head*/) override {}
    Sent send(std::string_view /*bytes*/) override { return Sent::kGone; }
    void resume_when_sent(std::coroutine_handle<> /*waiter*/) override {}
    [[nodiscard]] bool is_gone() const override { return true; }
};

// A handler that reaches for the tree has accepted the request.
Task<> note_outcome(Handler handler, Exchange& exchange, bool& is_accepted) {
    try {
        const Response response = co_await handler(exchange);
        is_accepted = response.status < 400;
    } catch (const NoTree&) {
        is_accepted = true;
    } catch (const std::exception&) {
        is_accepted = false;
    }
}

// Values of each JSON type, for fields that the parser looks at itself.
const std::vector<Value>& samples() {
    static const std::vector<Value> kSamples{
        "x",
        1,
        true,
        Value::array(),
        Value::array({1}),
        Value::array({"x"}),
        Value::array({Value{{"role", "user"}, {"content", "x"}}}),
        Value::object(),
        Value{{"x", 1}},
    };
    return kSamples;
}

std::string_view type_of(const Value& value) {
    if (value.is_string()) return "string";
    if (value.is_boolean()) return "boolean";
    if (value.is_number()) return "integer";
    if (value.is_array()) return "array";
    return "object";
}

const Note* find(const std::vector<Note>& notes, std::string_view where, std::string_view name) {
    const auto place = std::ranges::find_if(notes, [&](const Note& note) {
        return note.where == where && note.name == name;
    });
    return place == notes.end() ? nullptr : &*place;
}

// Returns a value of the type that the parser reads; for kAny the sample with that index.
std::optional<Value> sample_of(const Note& note, std::size_t index) {
    if (note.kind == Kind::kAny) {
        if (index >= samples().size()) return std::nullopt;
        return samples()[index];
    }
    if (index > 0) return std::nullopt;
    switch (note.kind) {
        case Kind::kBool:
            return true;
        case Kind::kNumber:
        case Kind::kInteger:
        case Kind::kUnsigned:
            return 1;
        case Kind::kTexts:
            return Value::array({"x"});
        case Kind::kTokens:
            return Value::array({1});
        default:
            return "x";
    }
}

// Returns the words of a list such as "raw, scaled or truncated".
std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words;
    std::string word;
    for (const char c : text) {
        const bool is_part = c == '_' || c == '-' || c == '.' || (c >= '0' && c <= '9') ||
                             (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (is_part) {
            word += c;
        } else if (!word.empty()) {
            words.push_back(std::exchange(word, {}));
        }
    }
    if (!word.empty()) words.push_back(word);
    return words;
}

Ordered token_schema() { return {{"type", "integer"}, {"minimum", 0}, {"maximum", kTokenMost}}; }

}  // namespace

RouteProbe::RouteProbe(const Route& route, const ServerOptions& options)
    : route_(route), context_(options) {
    complete_body();
}

RouteProbe::Run RouteProbe::run(const Value& body) const {
    Request request;
    request.method = std::string(route_.methods.substr(0, route_.methods.find(',')));
    request.path = std::string(route_.path);
    request.headers.push_back({"content-type", "application/json"});
    request.body = body.dump();
    NoWire wire;
    Exchange exchange(std::move(request), Grant::kAdmin, context_, wire);
    Run result;
    FieldNotes notes;
    run_detached(note_outcome(route_.handler, exchange, result.is_accepted));
    result.notes = notes.list();
    return result;
}

Value RouteProbe::body_with(const Place& place, Value value) const {
    Value body = body_;
    if (place.object.empty()) {
        body[place.name] = std::move(value);
    } else {
        Value& object = body[place.object];
        if (!object.is_object()) object = Value::object();
        object[place.name] = std::move(value);
    }
    return body;
}

RouteProbe::Run RouteProbe::run_with(const Place& place, Value value) const {
    return run(body_with(place, std::move(value)));
}

bool RouteProbe::accepts(const Place& place, const Value& value) const {
    return run_with(place, value).is_accepted;
}

// Adds members until nothing is missing.
void RouteProbe::complete_body() {
    for (int i = 0; i < kRequiredMax; ++i) {
        const Run found = run(body_);
        is_body_accepted_ = found.is_accepted;
        const auto missing = std::ranges::find_if(found.notes, &Note::is_missing);
        if (found.is_accepted || missing == found.notes.end()) return;
        const Place place{missing->where, missing->name};
        std::size_t index = 0;
        for (; const auto sample = sample_of(*missing, index); ++index) {
            const Run tried = run_with(place, *sample);
            const Note* note = find(tried.notes, place.object, place.name);
            if (note == nullptr || (note->accepted.empty() && !note->is_refused)) break;
        }
        const auto sample = sample_of(*missing, index);
        if (!sample) return;
        body_ = body_with(place, *sample);
    }
}

Ordered RouteProbe::schema() { return schema_of(std::string()); }

// Describes the body, or the object with that name in the body.
Ordered RouteProbe::schema_of(const std::string& object) {
    Ordered schema{{"type", "object"}, {"properties", Ordered::object()}};
    Ordered required = Ordered::array();
    Run found = run(body_);
    if (!object.empty()) found = run_with({.object = {}, .name = object}, Value::object());
    for (const Note& note : found.notes) {
        if (note.where != object) continue;
        Ordered described = schema_of(note);
        if (described.is_null()) continue;
        schema["properties"][note.name] = std::move(described);
        const bool is_given = object.empty() && body_.contains(note.name);
        if (is_given || note.is_missing) required.push_back(note.name);
    }
    if (!required.empty()) schema["required"] = std::move(required);
    return schema;
}

// Returns null if the route refuses the field whatever its value is.
Ordered RouteProbe::schema_of(const Note& note) {
    const Place place{note.where, note.name};
    Ordered schema;
    switch (note.kind) {
        case Kind::kAny:
            return schema_of_any(place);
        case Kind::kBool:
            schema["type"] = "boolean";
            break;
        case Kind::kInteger:
            schema["type"] = "integer";
            add_integer_bounds(place, schema);
            break;
        case Kind::kUnsigned:
            schema = {
                {"type", "integer"},
                {"minimum", kLeast},
                {"maximum", std::numeric_limits<std::uint64_t>::max()}};
            break;
        case Kind::kNumber:
            schema["type"] = "number";
            add_number_bounds(place, schema);
            break;
        case Kind::kText:
            schema["type"] = "string";
            add_words(place, schema);
            break;
        case Kind::kTexts: {
            const Ordered text{{"type", "string"}};
            schema["anyOf"] = {text, {{"type", "array"}, {"items", text}}};
            break;
        }
        case Kind::kTokens:
            schema = {{"type", "array"}, {"items", token_schema()}};
    }
    const bool has_default = !note.initial.is_null() && note.initial != "";
    if (has_default) schema["default"] = Ordered::parse(note.initial.dump());
    return schema;
}

Ordered RouteProbe::schema_of_any(const Place& place) {
    std::vector<std::string_view> types;
    std::string accepted;
    // Whether a value other than {} and [] is accepted: even unsupported fields may be empty.
    bool has_value = false;
    for (const Value& sample : samples()) {
        const Run tried = run_with(place, sample);
        const Note* note = find(tried.notes, place.object, place.name);
        const bool is_wrong = note == nullptr || note->is_refused || !note->accepted.empty();
        if (note != nullptr && !note->accepted.empty()) accepted = note->accepted;
        // Without a note the value was accepted if the whole body was.
        const bool is_bad = is_wrong || (is_body_accepted_ && !tried.is_accepted);
        const bool is_empty = (sample.is_array() || sample.is_object()) && sample.empty();
        if (!is_empty && note != nullptr && !note->is_refused) has_value = true;
        if (!is_bad && std::ranges::find(types, type_of(sample)) == types.end())
            types.push_back(type_of(sample));
    }
    if (types.empty() || !has_value) return nullptr;
    Ordered alternatives = Ordered::array();
    for (const std::string_view type : types) {
        Ordered one{{"type", type}};
        if (type == "object" && place.object.empty()) one = schema_of(place.name);
        alternatives.push_back(std::move(one));
    }
    Ordered schema = alternatives.size() == 1 ? alternatives[0] : Ordered{{"anyOf", alternatives}};
    if (!accepted.empty()) schema["description"] = "accepted is " + accepted;
    return schema;
}

void RouteProbe::add_integer_bounds(const Place& place, Ordered& schema) const {
    schema["minimum"] = kLeast;
    schema["maximum"] = kMost;
    if (!is_body_accepted_) return;
    constexpr auto kInside = std::to_array<std::int64_t>({1, 0, 2, 16, 256});
    const auto* const inside =
        std::ranges::find_if(kInside, [&](std::int64_t value) { return accepts(place, value); });
    if (inside == kInside.end()) return;
    // Returns the last value from `good` towards `bad` that is accepted.
    const auto last_good = [&](std::int64_t good, std::int64_t bad) {
        if (accepts(place, bad)) return bad;
        while (good + (good < bad ? 1 : -1) != bad) {
            const std::int64_t middle = good / 2 + bad / 2 + (good % 2 + bad % 2) / 2;
            (accepts(place, middle) ? good : bad) = middle;
        }
        return good;
    };
    schema["minimum"] = last_good(*inside, kLeast);
    schema["maximum"] = last_good(*inside, kMost);
}

// Bounds of numbers are round, so a few candidates find them.
void RouteProbe::add_number_bounds(const Place& place, Ordered& schema) const {
    constexpr auto kRound = std::to_array<double>(
        {-1e300, -1e9, -1000, -100, -10, -2, -1, 0, 1e-300, 1, 2, 10, 100, 1000, 1e9, 1e300}
    );
    constexpr double kSmallest = 1e-300;
    if (!is_body_accepted_) return;
    const auto is_good = [&](double value) { return accepts(place, value); };
    const auto* const least = std::ranges::find_if(kRound, is_good);
    if (least == kRound.end()) return;
    if (*least == kSmallest) {
        schema["exclusiveMinimum"] = 0;
    } else if (least != kRound.begin()) {
        schema["minimum"] = *least;
    }
    const auto most = std::find_if(kRound.rbegin(), kRound.rend(), is_good);
    if (most != kRound.rbegin()) schema["maximum"] = *most;
}

// Tries each word that the field's error lists. The accepted words are the field's values.
void RouteProbe::add_words(const Place& place, Ordered& schema) const {
    const Run tried = run_with(place, "?");
    const Note* note = find(tried.notes, place.object, place.name);
    if (note == nullptr || note->accepted.empty()) return;
    Ordered words = Ordered::array();
    for (const std::string& word : words_of(note->accepted)) {
        const Run named = run_with(place, word);
        const Note* of_word = find(named.notes, place.object, place.name);
        if (of_word != nullptr && of_word->accepted.empty() && !of_word->is_refused)
            words.push_back(word);
    }
    if (words.empty()) {
        schema["description"] = "accepted is " + note->accepted;
    } else {
        schema["enum"] = std::move(words);
    }
}

}  // namespace pitstop::http
