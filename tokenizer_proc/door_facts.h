// What the doors know of the tree and of themselves, for `status`.
#pragma once

#include "messages/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::tokenizer {

struct DoorFacts {
    std::string server{};  // "pitstop 0.1.0"
    std::string model{};   // name of the served model
    double uptime_s = 0;
    std::int64_t clients = 0;
    std::int64_t open_requests = 0;
    std::int64_t refused_total = 0;
    std::vector<messages::ListenerStatus> listeners{};

    void report(messages::StatusReply& reply) const {
        reply.server = server;
        reply.model = model;
        reply.uptime_s = uptime_s;
        reply.clients = clients;
        reply.open_requests = open_requests;
        reply.refused_total = refused_total;
        reply.listeners = listeners;
    }
};

}  // namespace pitstop::tokenizer
