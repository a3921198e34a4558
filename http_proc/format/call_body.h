// The part of an output after a marker of calls: the bytes read of it, and the open call. The
// readers of the formats fill in the body; its pieces report it to the client.
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

// The meaning of a byte for a body.
enum class CallStep : std::uint8_t {
    kMore,
    kCall,        // the byte ends the call; the body continues
    kEndOfCalls,  // the byte ends the list of calls; what follows belongs to no call
    kBody,        // the byte ends the body, and its call
    kBroken,      // no call can continue with the byte
    kReread,      // a part ended earlier: the body's unread bytes and this byte are read again
};

class CallBody {
  public:
    // Begins a body after `opening`: the marker, with the space before it.
    void begin(std::string opening);
    // Ends the body; none of its bytes remain.
    void end();

    // ---- the body's bytes ----
    void take(std::string_view bytes) { written_ += bytes; }
    void forget_written() { written_.clear(); }
    // The bytes that were read and are in no piece yet.
    [[nodiscard]] const std::string& written() const { return written_; }
    [[nodiscard]] bool is_right_after_opening() const { return !opening_.empty(); }
    void set_num_unread(std::size_t num) { num_unread_ = num; }
    // Removes and returns the unread bytes, which are the last bytes.
    [[nodiscard]] std::string take_unread();

    // ---- the open call ----
    // Reports the call to the client. Its name is name() from now on.
    void begin_call(std::string name, std::string id);
    // Sets a name that is not reported yet.
    void set_name(std::string name) { name_ = std::move(name); }
    [[nodiscard]] bool is_begun() const { return is_begun_; }
    [[nodiscard]] const std::optional<std::string>& name() const { return name_; }
    // The arguments that are in no piece yet. A call without arguments gets {}.
    [[nodiscard]] std::string& arguments() { return arguments_; }
    void set_has_arguments() { has_arguments_ = true; }
    [[nodiscard]] bool has_arguments() const { return has_arguments_; }
    // Writes the key of the arguments' next member, before its value.
    void add_key(std::string_view key);
    // Whether `arguments()` has enough of an object to begin the call: some content, or the end.
    [[nodiscard]] bool may_begin() const { return !is_begun_ && arguments_.size() >= 2; }
    // REQUIRES: the call is begun, or has a name.
    void end_call();
    // Ends a call that cannot continue. If it was not begun, the caller turns its bytes into text.
    void break_call();
    // Returns the text of a body that began no call, up to the last byte that was read.
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
