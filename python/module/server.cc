// Server for python/switchyard/server.py.
#include "switchyard/server.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "core.h"

namespace switchyard::python {
namespace {

// A server that this process may close: after a fork the child has its memory and none of its threads.
class OwnServer {
 public:
  explicit OwnServer(Server server) : server_(std::make_unique<Server>(std::move(server))) {}
  ~OwnServer() {
    if (is_ours())
      without_gil([&] { server_.reset(); });
    else
      static_cast<void>(server_.release());
  }
  Server& get() const {
    if (!is_ours())
      throw Error(Error::Kind::usage, "[serve] the server is another process's, of which this one is a fork");
    return *server_;
  }

 private:
  bool is_ours() const { return process_ == ::getpid(); }

  const pid_t process_ = ::getpid();
  std::unique_ptr<Server> server_;
};

}  // namespace

void define_server(nb::module_& module) {
  nb::class_<OwnServer>(module, "Server")
      .def_static(
          "start",
          [](const std::vector<std::string>& words, bool hears_signals) {
            Start start;
            const auto work = [&] { return Server::start(words, start.stop.get_token()); };
            return std::make_shared<OwnServer>(hears_signals ? heard(start.stop, work) : without_gil(work));
          })
      .def("url", [](const OwnServer& of) { return of.get().url(); })
      .def("notes", [](const OwnServer& of) { return of.get().notes(); })
      .def("stats", [](const OwnServer& of) { return without_gil([&] { return of.get().stats(); }); })
      .def("close", [](const OwnServer& of) { without_gil([&] { of.get().close(); }); });
}

}  // namespace switchyard::python
