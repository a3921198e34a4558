// Parses one request as its bytes arrive. Boost.Beast's parser stops after the head, so that a
// request can be refused before its body is read.
//
// Thread: the server's loop. Source: RFC 9112.
#pragma once

#include "http_proc/server/server_context.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace pitstop::http {

struct RequestParser {
    // The parts of a request that are parsed separately: first the head, then the body.
    enum class Part { kHead, kHeadUnderstood, kBody };

    boost::beast::http::request_parser<boost::beast::http::string_body> beast;
    Part part = Part::kHead;

    explicit RequestParser(const ServerLimits& limits) {
        beast.header_limit(static_cast<std::uint32_t>(limits.header_bytes_max));
        beast.body_limit(limits.body_bytes_max);
    }
    // Parses `input` up to the end of a part, and removes the parsed bytes. If the end was not
    // reached and there is no error, the parser needs more input.
    void put(std::string& input, boost::system::error_code& problem) {
        while (!input.empty()) {
            problem = {};
            const std::size_t taken = beast.put(boost::asio::buffer(input), problem);
            input.erase(0, taken);
            if (problem == boost::beast::http::error::need_more) {
                problem = {};
                return;
            }
            if (problem || taken == 0 || beast.is_done()) return;
            if (beast.is_header_done() && part != Part::kBody) return;
        }
    }
};

}  // namespace pitstop::http
