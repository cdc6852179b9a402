// Commands of the program as functions: the same words, and a report instead of printed lines.
//
//   const Report report = commands::plan({"model_name=mixtral-8x7b", "ranks=8"});
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "switchyard/error.h"

namespace switchyard::commands {

struct Report {
  std::string text;                     // for people, as the program prints it
  std::string json;                     // an object, as in the program's --json FILE (docs/json.md)
  std::vector<std::string> notes = {};  // what was said beside it
  int status = 0;                       // the program's exit status: of inspect 3 where two differ, …
};

using Words = std::vector<std::string>;
// Gets each note as it comes, in the calling thread.
using Tell = std::function<void(const std::string& note)>;

// `words` are those behind the command's name. Error(usage) for wrong ones, for --help, and
// in a program that mpirun started more than once.
Report plan(const Words& words, const Tell& tell = {});
Report explain(const Words& words, const Tell& tell = {});
Report inspect(const Words& words, const Tell& tell = {});
Report convert(const Words& words, const Tell& tell = {});
Report evaluate(const Words& words, const Tell& tell = {});  // `eval`
Report doctor(const Words& words, const Tell& tell = {});

}  // namespace switchyard::commands
