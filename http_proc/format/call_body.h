// The part of an output that a marker of calls has begun: the bytes that were read of it, and the
// call that is open. Readers of the formats fill it in; the pieces tell it to the client.
//
// Bounded: by the output.
#pragma once

#include "http_proc/format/turn_pieces.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

// What a byte is to a body.
enum class CallStep : std::uint8_t {
    kMore,
    kCall,        // the byte ends the call; the body goes on
    kEndOfCalls,  // the byte ends the list of calls; what follows belongs to no call
    kBody,        // the byte ends the body, and its call
    kBroken,      // no call goes on with the byte
    kReread,      // a part ended before: the body's unread bytes are read again, and this one
};

class CallBody {
  public:
    // Begins a body after `opening`: the marker, with the space before it.
    void begin(std::string opening);
    // The body has ended, and nothing of it remains.
    void end();

    // ---- its bytes ----
    void take(std::string_view bytes) { written_ += bytes; }
    void forget_written() { written_.clear(); }
    // The bytes since the body or its last call began or ended.
    [[nodiscard]] const std::string& written() const { return written_; }
    [[nodiscard]] bool is_right_after_opening() const { return !opening_.empty(); }
    void set_num_unread(std::size_t num) { num_unread_ = num; }
    // Removes the unread bytes, which are the last ones, and returns them.
    [[nodiscard]] std::string take_unread();

    // ---- the open call ----
    // Reports the call to the client. Its name is name() from now on.
    void begin_call(std::string name, std::string id);
    // Sets a name that is not reported yet.
    void set_name(std::string name) { name_ = std::move(name); }
    [[nodiscard]] bool is_begun() const { return is_begun_; }
    [[nodiscard]] const std::optional<std::string>& name() const { return name_; }
    // The arguments that are in no piece yet. They are {} if none is ever given.
    [[nodiscard]] std::string& arguments() { return arguments_; }
    void set_has_arguments() { has_arguments_ = true; }
    [[nodiscard]] bool has_arguments() const { return has_arguments_; }
    // Writes the key of the arguments' next member, before its value.
    void add_key(std::string_view key);
    // Begins the call where `arguments()` has an object with some content, or its end.
    [[nodiscard]] bool may_begin() const { return !is_begun_ && arguments_.size() >= 2; }
    // REQUIRES: the call is begun, or has a name.
    void end_call();
    // The call does not go on. One that was not begun is text, which the caller makes of it.
    void break_call();
    // Returns the text of a body without a begun call, up to the end of what was read.
    [[nodiscard]] std::string take_opening();
    [[nodiscard]] std::string take_written();

    [[nodiscard]] bool has_call() const { return has_call_; }  // this body has had one
    [[nodiscard]] bool has_calls() const { return has_calls_; }

    // Moves the arguments that have arrived into the pieces.
    void flush();
    TurnPieces& pieces() { return pieces_; }
    [[nodiscard]] TurnPieces take_pieces();

  private:
    TurnPieces pieces_{};
    std::string opening_{};
    std::string written_{};  // until the call ends: a part may be read again
    std::size_t num_unread_ = 0;
    bool has_call_ = false;
    bool has_calls_ = false;

    bool is_begun_ = false;
    std::optional<std::string> name_{};
    std::string arguments_{};
    bool has_arguments_ = false;
};

}  // namespace pitstop::http
