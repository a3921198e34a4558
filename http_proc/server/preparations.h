// The requests that were read but not sent to the tree yet, because the tree must first answer
// questions about their prompts. An abort waits until all requests that it may concern have been
// sent, so that none escapes.
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
        // shared by all entries for which it waits
        std::vector<std::shared_ptr<Waiting>> waiting{};
    };

  public:
    // The entry of one HTTP request. Destroying it ends the preparation: the requests were
    // sent, or refused.
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

    // `names`: the prefixes of all names by which part of the preparation may be aborted.
    Entry begin(std::vector<std::string> names);

    // co_await returns true when all present entries that one of these names may concern have
    // ended; without names: all present entries.
    [[nodiscard]] Later<bool> over(const std::vector<std::string>& names);

  private:
    void end(std::list<Open>::iterator place);

    std::list<Open> open_{};
};

}  // namespace pitstop::http
