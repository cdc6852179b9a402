// Topology: the machine that ranks run on, as far as a step's estimated time depends on it.
//
// Read from configs/topology/NAME.yml or a file of the user's, or measured (machine). Rates are peak rates
// per rank; `efficiency` is the share of the peak that long kernels and transfers reach.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "core/work.h"
#include "parallel/comm/abstract.h"

namespace switchyard {

struct Link {
  double bytes_per_second = 0;  // one direction, per rank
  double latency_seconds = 0;   // of one message
};

struct Topology {
  std::string name;
  int ranks_per_node = 1;
  bool host = false;              // ranks are in one process on this machine
  int gpu_major = 0;              // a rank is a GPU of this compute capability; 0: no GPU
  std::int64_t memory_bytes = 0;  // memory of one rank

  // A GPU has its own process; other ranks of a node share one.
  int ranks_per_process() const { return gpu_major > 0 ? 1 : ranks_per_node; }
  WorkspaceOf workspace() const { return host ? WorkspaceOf::cpu : WorkspaceOf::none; }
  double bf16_flops = 0, f32_flops = 0, memory_bytes_per_second = 0;
  // The rate at which a product of few rows reads weights of a type. A type without an entry is read at
  // memory_bytes_per_second.
  std::map<DType, double> weight_bytes_per_second;
  double kernel_start_seconds = 0;  // from the end of a kernel to the begin of the next one
  double compute_efficiency = 1, memory_efficiency = 1, network_efficiency = 1;
  Link inside, between;  // between ranks of one node; between ranks of different nodes

  // `name` is the name of a file in configs/topology, a path, or `machine`: this one, measured in seconds.
  // Rates that the file states for a whole machine are shared by its ranks. Error(usage), one line, for a
  // file that is missing or wrong.
  static Topology read(const std::string& name, int ranks);

  double compute_seconds(const Work& work) const;
  double memory_seconds(const Work& work) const;
  double transfer_seconds(const Transfer& transfer) const;
};

}  // namespace switchyard
