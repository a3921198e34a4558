// Notes to be added to the answers of open calls at the admin door.
//
// Thread:  the loop thread only.
// Bounded: by the open calls, as every call is answered.
#pragma once

#include "messages/control_call.h"
#include "tokenizer_proc/open_calls.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace pitstop::tokenizer {

class AnswerNotes {
  public:
    struct Note {
        std::string text{};
        std::optional<messages::CollectedVersion> update{};
    };
    void add(const AdminCaller& caller, Note note) {
        notes_[{caller.peer, caller.call}] = std::move(note);
    }
    // Adds the caller's note, if any, to the answer, and forgets the note.
    template <class Message>
    void add_to(Message& answer, const AdminCaller& caller) {
        auto place = notes_.extract({caller.peer, caller.call});
        if (place.empty()) return;
        Note& note = place.mapped();
        if constexpr (requires { answer.verdict; }) put_before(note.text, answer.verdict.message);
        if constexpr (requires { answer.error; }) put_before(note.text, answer.error.message);
        if constexpr (requires { answer.update = note.update; })
            answer.update = std::move(note.update);
    }

  private:
    static void put_before(std::string note, std::string& text) {
        if (!note.empty() && !text.empty()) note += "; ";
        text.insert(0, note);
    }

    std::map<std::pair<std::string, CallId>, Note> notes_{};
};

}  // namespace pitstop::tokenizer
