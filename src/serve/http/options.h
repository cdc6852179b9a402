// The settings of the HTTP server.
#pragma once

#include <string>
#include <vector>

#include "serve/http/keys.h"

namespace switchyard::http {

struct Options {
  std::string host = "127.0.0.1";
  int port = 0;                                   // 0: any free one
  int io_threads = 2;                             // that read, write, and run the handlers of GET
  std::size_t most_body = std::size_t{16} << 20;  // bytes of a request's body
  std::size_t most_head = std::size_t{64} << 10;  // bytes of its line and headers

  Keys keys = {};                         // none: everybody may ask
  bool protect_metrics = false;           // routes with Access::monitoring want a key too
  std::vector<std::string> origins = {};  // whose pages may ask (CORS); *: all
  std::vector<std::string> host_names =
      {};  // that requests may name in Host while only this machine is listened to
  std::string tls_certificate = {}, tls_key = {};  // PEM files; both or none

  double idle_seconds = 75;    // a connection without a request is closed after these
  double read_seconds = 30;    // for a request's head, and for any progress of its body
  double write_seconds = 600;  // for any progress of an answer
  double quiet_seconds = 15;   // after which a stream without news sends a comment
  double stop_seconds = 10;    // for any progress of an answer once the server stops
};

// Returns whether only this machine reaches the address.
bool is_loopback(const std::string& host);

// Returns a host as URLs have it: an IPv6 address has brackets around it, and the % of
// its zone is %25 (RFC 6874).
std::string host_in_url(const std::string& host);

}  // namespace switchyard::http
