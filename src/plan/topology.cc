#include "plan/topology.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "config/config_file.h"
#include "config/declaration.h"
#include "core/error.h"
#include "plan/machine_topology.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

fs::path find_file(const std::string& name) {
  const fs::path ours = config_folder() / "topology" / (name + ".yml");
  if (fs::exists(ours)) return ours;
  if (fs::exists(name)) return name;
  std::vector<std::string> known = config_names("topology");
  known.push_back("machine");
  fail_usage("[topology] topology={}: expected one of {} or a file, got neither{}", name,
             fmt::format("{}", fmt::join(known, ", ")), nearest_hint(name, known));
}

// The keys of one file. Each may be read once, and none may remain unread.
class Keys {
 public:
  explicit Keys(const fs::path& file) : file_(file.string()) {
    for (auto& [key, value] : read_config_file(file)) values_[key] = value;
  }
  std::string text(const std::string& key) {
    const auto at = values_.find(key);
    if (at == values_.end()) fail_usage("[topology] {}: expected a key {}, got none", file_, key);
    if (!at->second.is_string()) fail_usage("[topology] {}: expected {} to be one value", file_, key);
    std::string value = at->second.get<std::string>();
    values_.erase(at);
    known_.push_back(key);
    return value;
  }
  double number(const std::string& key) {
    const std::string value = text(key);
    char* end = nullptr;
    const double result = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !(result > 0) || !std::isfinite(result))
      fail_usage("[topology] {}: expected {} to be a number above 0, got {}", file_, key, value);
    return result;
  }
  double share(const std::string& key) {
    const double value = number(key);
    if (value > 1) fail_usage("[topology] {}: expected {} to be at most 1, got {}", file_, key, value);
    return value;
  }
  bool has(const std::string& key) const { return values_.count(key) > 0; }
  void finish() const {
    if (values_.empty()) return;
    const std::string& key = values_.begin()->first;
    fail_usage("[topology] {}: unknown key {}{}", file_, key, nearest_hint(key, known_));
  }

 private:
  std::string file_;
  std::map<std::string, nlohmann::json> values_;
  std::vector<std::string> known_;
};

double machine_memory_gib() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) /
         (std::int64_t{1} << 30);
}

}  // namespace

Topology Topology::read(const std::string& name, int ranks) {
  if (name == "machine") return machine_topology(ranks);
  const fs::path file = find_file(name);
  Keys keys(file);
  Topology t;
  t.name = file.stem().string();
  const std::string per_node = keys.text("ranks_per_node");
  t.host = per_node == "all";  // one machine whose rates all ranks share
  char* end = nullptr;
  const long stated = std::strtol(per_node.c_str(), &end, 10);
  if (!t.host && (per_node.empty() || *end != '\0' || stated < 1 || stated > 1 << 20))
    fail_usage("[topology] {}: expected ranks_per_node to be a whole number above 0 or all, got {}",
               file.string(), per_node);
  t.ranks_per_node = t.host ? ranks : static_cast<int>(stated);
  if (keys.has("compute_capability")) {
    t.gpu_major = static_cast<int>(keys.number("compute_capability"));
    if (t.host || t.gpu_major < 8)
      fail_usage("[topology] {}: expected compute_capability to be 8 or more, and ranks_per_node a number",
                 file.string());
    if (keys.has("kernel_start_us")) t.kernel_start_seconds = keys.number("kernel_start_us") * 1e-6;
  }
  const double sharers = t.host ? ranks : 1;
  const std::string memory = keys.text("memory_gib");
  double gib = machine_memory_gib();
  if (memory != "machine") {
    gib = std::strtod(memory.c_str(), &end);
    if (memory.empty() || *end != '\0' || !(gib > 0) || !std::isfinite(gib))
      fail_usage("[topology] {}: expected memory_gib to be a number above 0 or machine, got {}",
                 file.string(), memory);
  }
  t.memory_bytes = static_cast<std::int64_t>(gib / sharers * (std::int64_t{1} << 30));
  t.bf16_flops = keys.number("bf16_tflops") * 1e12 / sharers;
  t.f32_flops = keys.number("f32_tflops") * 1e12 / sharers;
  t.memory_bytes_per_second = keys.number("memory_gb_per_s") * 1e9 / sharers;
  t.inside = {keys.number("inside_gb_per_s") * 1e9 / sharers, keys.number("inside_latency_us") * 1e-6};
  t.between = {keys.number("between_gb_per_s") * 1e9 / sharers, keys.number("between_latency_us") * 1e-6};
  t.compute_efficiency = keys.share("compute_efficiency");
  t.memory_efficiency = keys.share("memory_efficiency");
  t.network_efficiency = keys.share("network_efficiency");
  keys.finish();
  return t;
}

double Topology::compute_seconds(const Work& work) const {
  return work.flops / ((work.dtype == DType::bf16 ? bf16_flops : f32_flops) * compute_efficiency);
}

double Topology::memory_seconds(const Work& work) const {
  const auto measured = weight_bytes_per_second.find(work.weights);
  const double rate = measured == weight_bytes_per_second.end() ? memory_bytes_per_second : measured->second;
  return work.bytes / (rate * memory_efficiency);
}

// An exchange between nodes: every rank has a link of its own out of the node. A gather or a sum crosses it
// once a node, shared by the ranks of the group there; in an all-to-all every rank sends its own part across.
double Topology::transfer_seconds(const Transfer& transfer) const {
  const int mine = transfer.group.ranks[static_cast<std::size_t>(transfer.group.index)] / ranks_per_node;
  const auto here =
      static_cast<double>(std::count_if(transfer.group.ranks.begin(), transfer.group.ranks.end(),
                                        [&](int rank) { return rank / ranks_per_node == mine; }));
  const auto ranks = static_cast<double>(transfer.group.ranks.size());
  const double bytes = static_cast<double>(transfer.bytes) / network_efficiency;
  const double messages = std::ceil(std::log2(ranks));
  if (here == ranks) return bytes / inside.bytes_per_second + messages * inside.latency_seconds;
  const bool personal =
      transfer.kind == Collective::all_to_all || transfer.kind == Collective::ragged_all_to_all;
  const double away = personal ? (ranks - here) / (ranks - 1) : 1 / here;
  const double home = personal ? (here - 1) / (ranks - 1) : (here > 1 ? 1 : 0);
  return std::max(bytes * away / between.bytes_per_second, bytes * home / inside.bytes_per_second) +
         messages * between.latency_seconds;
}

}  // namespace switchyard
