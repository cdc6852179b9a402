#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "bench/peak.h"
#include "commands/commands.h"
#include "config/declaration.h"
#include "core/cores.h"
#include "core/device.h"
#include "core/error.h"
#include "core/gpu.h"
#include "grammar/grammar.h"
#include "kernels/machine/machine.h"
#include "kernels/registry/isa.h"
#include "parallel/comm/nccl/library.h"
#include "parallel/comm/processes.h"
#include "serve/http/server.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// One line of the report.
struct PartOfMachine {
  std::string name;
  const char* state = "ok";
  std::string what;
  std::string advice = {};  // for what is missing
};

PartOfMachine missing(const std::string& name, std::string what, std::string advice) {
  return {name, "missing", std::move(what), std::move(advice)};
}

// The first line of a file; empty where there is none.
std::string line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string gigabytes(double bytes) {
  return fmt::format("{:.1f} GiB", bytes / (1 << 30));
}

PartOfMachine processor() {
  if (machine_isa() == Isa::ref)
    return missing("cpu", machine_name(),
                   "kernels of CPUs need AVX2; without it all runs on slow references");
  return {"cpu", "ok", machine_name()};
}

PartOfMachine cores() {
  const double granted = granted_cores();
  std::string what = fmt::format("{} of {}", usable_cores(), std::thread::hardware_concurrency());
  if (std::isfinite(granted)) what += fmt::format(", control groups grant {:.1f}", granted);
  return {"cores", "ok", what};
}

PartOfMachine memory_nodes() {
  int nodes = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", none)) {
    const std::string name = entry.path().filename();
    nodes += name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos;
  }
  if (nodes == 0) return {"numa", "unknown", "the system does not tell its memory nodes"};
  return {"numa", "ok", fmt::format("{} memory node{}", nodes, nodes == 1 ? "" : "s")};
}

PartOfMachine memory() {
  const auto available = available_memory();
  if (!available) return {"memory", "unknown", "the system does not tell its memory"};
  const auto all = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return {"memory", "ok",
          fmt::format("{} of {} are free for this process", gigabytes(static_cast<double>(available->bytes)),
                      gigabytes(all))};
}

PartOfMachine huge_pages() {
  const std::string setting = line_of("/sys/kernel/mm/transparent_hugepage/enabled");
  if (setting.empty()) return {"huge pages", "unknown", "the system does not tell"};
  if (setting.find("[never]") != std::string::npos)
    return missing("huge pages", "transparent huge pages are off: products may be slower by a third",
                   "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  return {"huge pages", "ok", setting};
}

PartOfMachine speed() {
  constexpr double kBudget = 0.3;
  const bench::Peaks peaks =
      bench::measure_peaks(usable_cores(), kBudget, bench::default_copy_bytes(), false).peaks;
  return {
      "speed", "ok",
      fmt::format("{:.2f} TFLOP/s in bfloat16, {:.2f} in float32; memory: {:.1f} GB/s copied, {:.1f} read",
                  peaks.bf16_flops * 1e-12, peaks.f32_flops * 1e-12, peaks.stream_bytes * 1e-9,
                  peaks.read_bytes * 1e-9)};
}

std::string cuda_version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

PartOfMachine gpu_of_machine() {
  if (std::string why = gpu::missing(); !why.empty())
    return missing("gpu", std::move(why), "device=cpu needs none; docs/cuda.md says what a GPU needs");
  const gpu::Properties card = gpu::properties();
  return {"gpu", "ok",
          fmt::format("{}, compute capability {}.{}, {}; driver for CUDA {}, built with {}", card.name,
                      card.major, card.minor, gigabytes(static_cast<double>(card.memory_bytes)),
                      cuda_version(card.driver_version), cuda_version(card.runtime_version))};
}

PartOfMachine nccl_here() {
  if (!gpu::missing().empty()) return missing("nccl", "not looked for: there is no GPU", "");
  try {
    return {"nccl", "ok", NcclLibrary::for_device(Device::named("cuda")).name()};
  } catch (const Error& error) {
    return missing("nccl", error.what(), "GPUs of several processes need it: install libnccl2");
  }
}

// A program's path as the shell finds it; empty where there is none.
std::string found_in_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path(folder) / program;
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

PartOfMachine mpi() {
  if (!knows_mpi())
    return missing("mpi", "this build has no MPI",
                   "install libopenmpi-dev, and build again with SWITCHYARD_MPI=ON");
  if (const std::string launcher = found_in_path("mpirun"); !launcher.empty())
    return {"mpi", "ok", "built in; launcher " + launcher};
  return missing("mpi", "built in, but there is no mpirun", "install openmpi-bin");
}

PartOfMachine grammars() {
  if (grammar::is_built_in()) return {"grammars", "ok", "built in: JSON schemas and forced tool calls"};
  return missing("grammars", "this build has none: no JSON schemas, no forced tool calls",
                 "build again with SWITCHYARD_XGRAMMAR=ON and its sources (scripts/install_dependencies.sh)");
}

PartOfMachine tls() {
  if (http::Server::knows_tls()) return {"tls", "ok", "built in: `serve` and `chat --url` speak https"};
  return missing(
      "tls", "this build has no TLS: `serve` and `chat --url` speak http alone",
      "put a proxy that has TLS before `serve`, or install libssl-dev and build with SWITCHYARD_TLS=ON");
}

PartOfMachine line_editing() {
#ifdef SWITCHYARD_NO_LIBEDIT
  return missing("libedit", "this build has no libedit: `chat` reads plain lines",
                 "install libedit-dev, and build again with SWITCHYARD_LIBEDIT=ON");
#else
  return {"libedit", "ok", "built in: `chat` edits lines and keeps a history"};
#endif
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

// The parts that --require may name.
const std::vector<std::string> kRequirable{"cpu", "gpu", "nccl", "mpi", "grammars", "tls", "libedit"};

}  // namespace

Options doctor_options(std::span<const std::string> args) {
  return parse_options("doctor", args);
}

Report run_doctor(const Options& options, const Tell& tell) {
  if (!options.settings.empty())
    fail_usage("[doctor] expected options alone, got {}", options.settings.front());
  const auto given = options.values.find("--require");
  const std::vector<std::string> required =
      given == options.values.end() ? std::vector<std::string>() : words_of(given->second);
  for (const std::string& name : required) {
    if (std::ranges::find(kRequirable, name) == kRequirable.end())
      fail_usage("[doctor] --require {}: expected cpu, gpu, nccl, mpi, grammars, tls or libedit{}", name,
                 nearest_hint(name, kRequirable));
  }
  std::vector<PartOfMachine> parts{
      {"version", "ok", SWITCHYARD_VERSION}, processor(), cores(), memory_nodes(), memory(), huge_pages()};
  if (!options.flags.contains("--quick")) parts.push_back(speed());
  for (PartOfMachine part : {gpu_of_machine(), nccl_here(), mpi(), grammars(), tls(), line_editing()})
    parts.push_back(std::move(part));
  nlohmann::ordered_json json{{"version", SWITCHYARD_VERSION}, {"parts", nlohmann::ordered_json::array()}};
  std::string text;
  int status = 0;
  for (const PartOfMachine& part : parts) {
    append(text, "{:<11} {:<8} {}\n", part.name, part.state, part.what);
    if (!part.advice.empty()) append(text, "{:<20} {}\n", "", part.advice);
    json["parts"].push_back(
        {{"name", part.name}, {"state", part.state}, {"what", part.what}, {"advice", part.advice}});
    const bool is_required = std::ranges::find(required, part.name) != required.end();
    if (is_required && part.state != std::string_view("ok")) {
      tell(fmt::format("switchyard: [doctor] --require {}: {}", part.name, part.what));
      status = 1;
    }
  }
  return reported(options, std::move(text), json, status);
}

}  // namespace switchyard
