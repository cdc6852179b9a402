#include "kernels/registry/proofs.h"

#include <atomic>

#include "kernels/cuda/planned.h"

namespace switchyard::registry {
namespace {

std::atomic<bool> takes_all{false};

}  // namespace

void take_unproven_rows(bool all) {
  takes_all = all;
}

const char* unproven(const Proof* proof) {
  if (proof == nullptr || proof->is_given() || takes_all || !gpu::chooses_for_a_card()) return nullptr;
  return "it has run on an emulated card only; gpu_kernels=all takes it";
}

}  // namespace switchyard::registry
