// A small client of HTTP for tests: a socket that blocks, and what comes over it.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace switchyard::http {

struct CaseBlind {
  bool operator()(const std::string& a, const std::string& b) const {
    return ::strcasecmp(a.c_str(), b.c_str()) < 0;
  }
};

struct ClientAnswer {
  int status = 0;
  std::map<std::string, std::string, CaseBlind> headers = {};
  std::string body = {};  // without its chunks' sizes
  bool is_whole = false;  // its end came
  std::string version = {};

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// One connection to a port of 127.0.0.1. A read that takes longer than `seconds` counts as the end.
class ClientConnection {
 public:
  explicit ClientConnection(int port, int receive_bytes = 0, int seconds = 60)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval wait{seconds, 0};
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (receive_bytes > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ClientConnection(ClientConnection&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        connected_(other.connected_),
        bytes_(std::move(other.bytes_)) {}
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;
  ~ClientConnection() { close(); }

  bool is_connected() const { return connected_; }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }
  void reset() {  // as a process does that ends with bytes it has not read
    const linger none{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close();
  }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  // Returns what comes next, or "" at the end.
  std::string receive() {
    if (!bytes_.empty()) return std::exchange(bytes_, {});
    std::string bytes(65536, '\0');
    const ssize_t size = ::recv(socket_, bytes.data(), bytes.size(), 0);
    bytes.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return bytes;
  }
  std::string receive_all() {
    std::string all;
    for (std::string more = receive(); !more.empty(); more = receive()) all += more;
    return all;
  }
  // Reads one answer. Status 0 where none came.
  ClientAnswer answer(bool to_head = false) {
    ClientAnswer answer;
    std::size_t end = std::string::npos;
    while ((end = bytes_.find("\r\n\r\n")) == std::string::npos) {
      if (!receive_more()) return answer;
    }
    read_head(answer, bytes_.substr(0, end + 2));
    bytes_.erase(0, end + 4);
    if (to_head || answer.status == 204 || answer.status < 200) {
      answer.is_whole = true;
    } else if (answer.header("Transfer-Encoding") == "chunked") {
      read_chunks(answer);
    } else if (answer.headers.contains("Content-Length")) {
      const std::size_t size = std::stoul(answer.header("Content-Length"));
      while (bytes_.size() < size && receive_more()) continue;
      answer.is_whole = bytes_.size() >= size;
      answer.body = bytes_.substr(0, size);
      bytes_.erase(0, size);
    } else {
      while (receive_more()) continue;
      answer.is_whole = true;
      answer.body = std::exchange(bytes_, {});
    }
    return answer;
  }

 private:
  bool receive_more() {
    std::string had = std::exchange(bytes_, {});
    const std::string more = receive();
    bytes_ = std::move(had) + more;
    return !more.empty();
  }
  static void read_head(ClientAnswer& answer, const std::string& head) {
    answer.version = head.substr(0, 8);
    answer.status = std::stoi(head.substr(9, 3));
    std::size_t begin = head.find("\r\n") + 2;
    while (begin < head.size()) {
      const std::size_t end = head.find("\r\n", begin), colon = head.find(": ", begin);
      answer.headers[head.substr(begin, colon - begin)] = head.substr(colon + 2, end - colon - 2);
      begin = end + 2;
    }
  }
  void read_chunks(ClientAnswer& answer) {
    for (;;) {
      std::size_t end;
      while ((end = bytes_.find("\r\n")) == std::string::npos) {
        if (!receive_more()) return;
      }
      const std::size_t size = std::stoul(bytes_.substr(0, end), nullptr, 16);
      while (bytes_.size() < end + size + 4) {
        if (!receive_more()) return;
      }
      answer.body += bytes_.substr(end + 2, size);
      bytes_.erase(0, end + size + 4);
      answer.is_whole = size == 0;
      if (size == 0) return;
    }
  }

  int socket_;
  bool connected_ = false;
  std::string bytes_;  // received and not read
};

// Asks each time over a connection of its own.
class Client {
 public:
  explicit Client(int port) : port_(port) {}

  ClientAnswer request(const std::string& method, const std::string& path, const std::string& headers = "",
                       const std::string& body = "") const {
    ClientConnection connection(port_);
    connection.send(fmt::format("{} {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n{}", method,
                                path, port_, headers));
    if (method == "POST") connection.send(fmt::format("Content-Length: {}\r\n", body.size()));
    connection.send("\r\n" + body);
    return connection.answer(method == "HEAD");
  }
  ClientAnswer get(const std::string& path) const { return request("GET", path); }
  ClientAnswer head(const std::string& path) const { return request("HEAD", path); }
  ClientAnswer post(const std::string& path, const std::string& body,
                    const std::string& type = "application/json") const {
    return request("POST", path, "Content-Type: " + type + "\r\n", body);
  }

 private:
  int port_;
};

}  // namespace switchyard::http
