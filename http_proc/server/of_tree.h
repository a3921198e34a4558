// A value that belongs to one tree: told to it, or learned from it. For the next tree the value is
// the default again, because a server outlives its tree.
//
// Thread: the server's loop.
#pragma once

#include <cstdint>

namespace pitstop::http {

template <class T>
class OfTree {
  public:
    // Returns the value of a tree, by its Tree::number().
    [[nodiscard]] T& of(std::uint64_t tree) {
        if (tree_ != tree) {
            tree_ = tree;
            value_ = T{};
        }
        return value_;
    }

  private:
    std::uint64_t tree_ = 0;  // the Tree::number() of value_; 0: of no tree
    T value_{};
};

}  // namespace pitstop::http
