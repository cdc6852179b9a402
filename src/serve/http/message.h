// Requests that handlers of the HTTP server get, and the whole or growing answers that they give.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace switchyard::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;
  std::string path;   // decoded, without the query
  std::string query;  // as sent
  std::string name;   // what stands at NAME of the route's path
  Headers headers;    // names in small letters
  std::string body;
  std::optional<std::size_t> key;  // which of the server's keys it has; none where the server has no keys
  int version = 11;                // 10 and 11: HTTP/1.0 and HTTP/1.1
  bool keep_alive = true;

  // Returns the first value of a header, or null. `header_name` is in small letters.
  const std::string* header(std::string_view header_name) const;
};

// The facts of an error, to which each path gives the form that its clients read.
struct Problem {
  std::string message, field, code;
};

struct Response {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  Headers headers = {};
  std::optional<Problem> problem = {};  // of an error: the body says it in OpenAI's form
};

// The form of the errors of `path` and of all paths below it, whoever finds them.
struct ErrorForm {
  std::string path;
  std::function<std::string(int status, const Problem& problem)> body;
};

// An answer whose text comes bit by bit, made by another thread.
class Growing {
 public:
  // `broken`: the rest will not come.
  enum class State { growing, ended, broken };
  struct Part {
    std::vector<std::string> texts = {};  // each is a chunk of its own where the answer goes out in chunks
    State state = State::growing;
  };

  Growing() = default;
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  virtual ~Growing() = default;

  // Returns whether each part is sent as it comes. Otherwise the whole answer is sent at its
  // end, with its length.
  virtual bool is_stream() const = 0;
  // Status, type and headers (the body does not count): asked before the first byte is sent.
  virtual Response head() const = 0;
  // Sets what is called, by any thread, when there may be more to take. After on_more({}) has returned, it is
  // not called any more.
  virtual void on_more(std::function<void()> wake) = 0;
  // Returns what has come since the last call.
  virtual Part take() = 0;
  // Says that nobody wants the rest.
  virtual void abandon() = 0;
};

using Answer = std::variant<Response, std::shared_ptr<Growing>>;

// Returns an error in OpenAI's form. The type follows from the status. Router::shape_error gives it the form
// of the path that was asked for.
Response error_response(int status, const std::string& message, const std::string& field = "",
                        const std::string& code = "");

// Returns the bytes before the body. No `length`: the body's length is not known when it begins; with
// HTTP/1.1 it then comes in chunks. Control characters in headers become blanks.
std::string head_text(const Response& response, const Request& request, std::optional<std::size_t> length,
                      bool keep_alive);

// Returns the bytes of one part of a body that comes in chunks. An empty part would end the body.
std::string chunk_text(std::string_view text);

}  // namespace switchyard::http
