#include "http_proc/format/field_notes.h"

#include "base/check.h"

#include <algorithm>

namespace pitstop::http {
namespace {

thread_local FieldNotes* notes_of_thread = nullptr;

}  // namespace

FieldNotes::FieldNotes() {
    CHECK(notes_of_thread == nullptr);
    notes_of_thread = this;
}

FieldNotes::~FieldNotes() { notes_of_thread = nullptr; }

FieldNotes* FieldNotes::of_thread() { return notes_of_thread; }

FieldNotes::Note& FieldNotes::note_of(std::string_view where, std::string_view name) {
    const auto place = std::ranges::find_if(list_, [&](const Note& note) {
        return note.name == name && note.where == where;
    });
    if (place != list_.end()) return *place;
    return list_.emplace_back(Note{.where = std::string(where), .name = std::string(name)});
}

}  // namespace pitstop::http
