// Notes which members a parser reads from an object. No table lists the fields that a route
// accepts, so observe/route_probe.h runs the parsers and describes the routes by these notes.
//
//   FieldNotes notes;
//   parse_openai_completions(body);
//   for (const FieldNotes::Note& note : notes.list()) ...
//
// Thread: its own. While notes exist, the FieldReaders of their thread write to them.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

class FieldNotes {
  public:
    // The type that a parser reads; kAny: it looks at the value itself.
    enum class Kind : std::uint8_t {
        kAny,
        kBool,
        kInteger,
        kUnsigned,
        kNumber,
        kText,
        kTexts,
        kTokens
    };
    struct Note {
        // the object that has the member, as errors name it: "sampling_params"; empty: the body
        std::string where{};
        std::string name{};
        Kind kind = Kind::kAny;
        nlohmann::json initial{};  // the value if the member is absent; null: none
        std::string accepted{};    // the accepted values, as its error names them; empty: no error
        bool is_missing = false;   // the error was that the member is absent
        bool is_refused = false;
    };

    // REQUIRES: the thread has no other FieldNotes.
    FieldNotes();
    ~FieldNotes();
    FieldNotes(const FieldNotes&) = delete;
    FieldNotes& operator=(const FieldNotes&) = delete;

    // Returns the thread's notes, or null.
    [[nodiscard]] static FieldNotes* of_thread();

    // Returns the member's note, which is made if there is none.
    Note& note_of(std::string_view where, std::string_view name);
    [[nodiscard]] const std::vector<Note>& list() const { return list_; }

  private:
    std::vector<Note> list_{};  // in the order of the first reads
};

}  // namespace pitstop::http
