// The commands for python/switchyard/commands.py.
#include "switchyard/commands.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core.h"

namespace switchyard::python {

void define_commands(nb::module_& module) {
  for (const auto& [name, command] :
       {std::pair("plan", &commands::plan), std::pair("explain", &commands::explain),
        std::pair("inspect", &commands::inspect), std::pair("convert", &commands::convert),
        std::pair("evaluate", &commands::evaluate), std::pair("doctor", &commands::doctor)}) {
    module.def(
        (std::string("run_") + name).c_str(),
        [command](const commands::Words& words) {
          const commands::Report report = without_gil([&] { return command(words, {}); });
          return nb::make_tuple(to_text(report.text), to_text(report.json), report.notes, report.status);
        },
        nb::sig(
            (std::string("def run_") + name + "(words: Sequence[str], /) -> tuple[str, str, list[str], int]")
                .c_str()));
  }
}

}  // namespace switchyard::python
