// RequestReader: from the bytes of a connection to its requests, one after the other. Knows no sockets.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serve/http/message.h"

namespace switchyard::http {

class RequestReader {
 public:
  RequestReader(std::size_t most_head, std::size_t most_body);
  ~RequestReader();

  // more: add() bytes. head: all but the body is there; read_body() goes on. bad: refusal() says why, and the
  // connection cannot go on.
  enum class Step { more, head, whole, bad };

  void add(std::string_view bytes);
  // Reads what it can of the bytes that are there.
  Step advance();
  // Returns whether a part of the next request is there already.
  bool has_begun() const;

  Request& request() { return request_; }
  Response& refusal() { return refusal_; }
  // The values below are known from Step::head on.
  bool has_body() const;
  bool awaits_continue() const;  // the client sends the body when it is told to (100 Continue)
  // Lets advance() read the body. Returns false, with a refusal(), where it is known to be too long.
  bool read_body();
  // Forgets the request, which was read to its end.
  void next();

 private:
  Step refuse(int status, const std::string& message);
  void take_head();

  struct Parser;
  const std::size_t most_head_, most_body_;
  std::unique_ptr<Parser> parser_;
  std::string bytes_;  // not read yet
  Request request_;
  Response refusal_;
  enum class At { head, checked, body, end } at_ = At::head;
};

// Replaces each %XX by its byte. Returns none where two digits do not follow a %.
std::optional<std::string> decode_path(std::string_view path);

}  // namespace switchyard::http
