#include "messages/supports.h"

#include "base/check.h"

#include <numeric>
#include <utility>

namespace pitstop::messages {

void Supports::append(const DrawSupport& next) {
    sizes.push_back(static_cast<std::int32_t>(next.ids.size()));
    ids.insert(ids.end(), next.ids.begin(), next.ids.end());
    logprobs.push_back(next.logprob);
}

void Supports::append(Supports next) {
    sizes.insert(sizes.end(), next.sizes.begin(), next.sizes.end());
    ids.insert(ids.end(), next.ids.begin(), next.ids.end());
    logprobs.insert(logprobs.end(), next.logprobs.begin(), next.logprobs.end());
}

void Supports::keep(std::size_t num) {
    CHECK(num <= sizes.size());
    sizes.resize(num);
    logprobs.resize(num);
    ids.resize(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}, [](auto sum, auto size) {
        return sum + static_cast<std::size_t>(size);
    }));
}

void append_supports(std::optional<Supports>& whole, std::optional<Supports> next) {
    if (!next) return;
    if (whole) {
        whole->append(*std::move(next));
    } else {
        whole = std::move(next);
    }
}

}  // namespace pitstop::messages
