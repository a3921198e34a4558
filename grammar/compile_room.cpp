#include "grammar/compile_room.h"

#include <algorithm>

namespace pitstop::grammar {

void CompileRoom::close() {
    const MutexLock lock(mutex_);
    is_closed_ = true;
    has_changed_.notify_all();
}

CompileRoom::Share::Share(CompileRoom& room, std::int64_t num_bytes)
    : room_(room), num_bytes_(std::clamp<std::int64_t>(num_bytes, 0, room.bytes_max_)) {
    MutexLock lock(room_.mutex_);
    const std::uint64_t place = room_.num_arrived_++;
    while (!room_.is_closed_ &&
           (room_.num_admitted_ != place || room_.num_held_ > room_.bytes_max_ - num_bytes_))
        room_.has_changed_.wait(lock);
    is_held_ = !room_.is_closed_;
    if (!is_held_) return;
    room_.num_held_ += num_bytes_;
    ++room_.num_admitted_;
    room_.has_changed_.notify_all();  // the next one may fit, too
}

CompileRoom::Share::~Share() {
    if (!is_held_) return;
    const MutexLock lock(room_.mutex_);
    room_.num_held_ -= num_bytes_;
    room_.has_changed_.notify_all();
}

}  // namespace pitstop::grammar
