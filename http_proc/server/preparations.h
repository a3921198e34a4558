// Requests that were read but not yet sent to the tree, because the tree must first answer
// questions about their prompts. An abort waits until all requests that it may concern have been
// sent, so that none escapes the abort.
//
// Thread:  the server's loop.
// Bounded: an entry and a waiting abort per connection.
#pragma once

#include "http_proc/server/task.h"

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::http {

class Preparations {
    struct Waiting {
        std::size_t num_left = 0;
        Later<bool>::Setter over;
    };
    struct Open {
        std::vector<std::string> names{};
        // aborts that wait for this entry; shared by all entries that an abort waits for
        std::vector<std::shared_ptr<Waiting>> waiting{};
    };

  public:
    // The entry of one HTTP request. Destroying the entry ends the preparation, because the
    // requests were sent or refused.
    class [[nodiscard]] Entry {
      public:
        Entry(Entry&& other) noexcept
            : all_(std::exchange(other.all_, nullptr)), place_(other.place_) {}
        Entry& operator=(Entry&&) = delete;
        ~Entry() {
            if (all_ != nullptr) all_->end(place_);
        }

      private:
        friend class Preparations;
        Entry(Preparations& all, std::list<Open>::iterator place) : all_(&all), place_(place) {}
        Preparations* all_;
        std::list<Open>::iterator place_;
    };

    // `names`: prefixes of all names by which a part of the preparation may be aborted.
    Entry begin(std::vector<std::string> names);

    // co_await returns true when all current entries to which one of these names may belong
    // have ended. Without names, waits for all current entries.
    [[nodiscard]] Later<bool> over(const std::vector<std::string>& names);

  private:
    void end(std::list<Open>::iterator place);

    std::list<Open> open_{};
};

}  // namespace pitstop::http
