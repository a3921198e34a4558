// Knows the requests that were read and have not gone to the tree yet: what the tree must say of
// their prompts first is being asked. An abort waits until those that it may mean have gone, so
// that none of them slips past it.
//
// Thread:  the server's loop.
// Bounded: an entry per connection, and as many that wait.
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
        std::vector<std::shared_ptr<Waiting>> waiting{};  // shared by all that it waits for
    };

  public:
    // An entry is one HTTP request's. Its end is the preparation's: the requests have gone, or were
    // refused.
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

    // `names` are what every name that may end some of it begins with.
    Entry begin(std::vector<std::string> names);

    // co_await gives true when what may be meant by one of these names, and is here now, is over;
    // where there are none: all that is here now.
    [[nodiscard]] Later<bool> over(const std::vector<std::string>& names);

  private:
    void end(std::list<Open>::iterator place);

    std::list<Open> open_{};
};

}  // namespace pitstop::http
