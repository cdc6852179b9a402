// BadRequest: says in one line what is wrong with a request.
#pragma once

#include <stdexcept>
#include <string>

namespace switchyard::chat {

struct BadRequest : std::runtime_error {
  BadRequest(const std::string& field_, const std::string& message, const std::string& code_ = "",
             int status_ = 400)
      : std::runtime_error(message), field(field_), code(code_), status(status_) {}
  std::string field;  // the path of the field to blame, such as messages[2].role; empty where there is none
  std::string code;   // as error bodies have it, such as template_error; empty: the protocol's usual one
  int status;         // of HTTP
};

}  // namespace switchyard::chat
