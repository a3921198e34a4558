// The part of an output after a marker of calls: the bytes read so far, and the open call. The
// readers of the formats fill in the body; its pieces report the calls to the client.
//
// Bounded: by the length of the output.
#pragma once

#include "http_proc/format/turn_pieces.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

// The effect of a byte on a body.
enum class CallStep : std::uint8_t {
    kMore,
    kCall,        // the byte ends the call; the body continues
    kEndOfCalls,  // the byte ends the list of calls; later bytes belong to no call
    kBody,        // the byte ends the body, and the open call
    kBroken,      // no call can have this byte here
    kReread,      // a value ended earlier: unread bytes and this byte are read again
};

class CallBody {
  public:
    // Begins a body after `opening`: the marker, including the white space before it.
    void begin(std::string opening);
    // Ends the body and drops its bytes.
    void end();

    // ---- the body's bytes ----
    void take(std::string_view bytes) { written_ += bytes; }
    void forget_written() { written_.clear(); }
    // The bytes that were read but are in no piece yet.
    [[nodiscard]] const std::string& written() const { return written_; }
    [[nodiscard]] bool is_right_after_opening() const { return !opening_.empty(); }
    void set_num_unread(std::size_t num) { num_unread_ = num; }
    // Removes and returns the unread bytes, the last ones of the body.
    [[nodiscard]] std::string take_unread();

    // ---- the open call ----
    // Reports the call to the client; from now on name() is its name.
    void begin_call(std::string name, std::string id);
    // Sets a name that is not reported yet.
    void set_name(std::string name) { name_ = std::move(name); }
    [[nodiscard]] bool is_begun() const { return is_begun_; }
    [[nodiscard]] const std::optional<std::string>& name() const { return name_; }
    // The arguments that are in no piece yet. A call without arguments gets "{}".
    [[nodiscard]] std::string& arguments() { return arguments_; }
    void set_has_arguments() { has_arguments_ = true; }
    [[nodiscard]] bool has_arguments() const { return has_arguments_; }
    // Writes the key of the arguments' next member, before its value.
    void add_key(std::string_view key);
    // Returns whether arguments() has enough of an object to begin the call: content, or its end.
    [[nodiscard]] bool may_begin() const { return !is_begun_ && arguments_.size() >= 2; }
    // REQUIRES: the call is begun, or has a name.
    void end_call();
    // Ends a call that cannot continue. If the call was not begun, the caller turns it into text.
    void break_call();
    // Returns the bytes of a body that began no call, up to the last byte that was read.
    [[nodiscard]] std::string take_opening();
    [[nodiscard]] std::string take_written();

    [[nodiscard]] bool has_call() const { return has_call_; }  // this body has had a call
    [[nodiscard]] bool has_calls() const { return has_calls_; }

    // Moves the arguments that have arrived into the pieces.
    void flush();
    TurnPieces& pieces() { return pieces_; }
    [[nodiscard]] TurnPieces take_pieces();

  private:
    TurnPieces pieces_{};
    std::string opening_{};
    std::string written_{};  // kept until the call ends, because a value may be read again
    std::size_t num_unread_ = 0;
    bool has_call_ = false;
    bool has_calls_ = false;

    bool is_begun_ = false;
    std::optional<std::string> name_{};
    std::string arguments_{};
    bool has_arguments_ = false;
};

}  // namespace pitstop::http
