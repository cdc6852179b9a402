// Kernel<Args>: an op's one table of implementations, for all devices, best first; run() is its one door.
//
//   constexpr Implementation<RopeArgs> kRopes[] = {
//       {"cuda", Gpu::any, gpu::rope},
//       {"avx512", Isa::avx512, on_tokens<cpu::rope_avx512>},
//       {"ref", Isa::ref, on_tokens<ref::rope>},
//   };
//   constexpr Kernel<RopeArgs> kRope{"rope", work_of, &RopeArgs::out, kRopes};
//   void rope(ThreadPool& pool, const RopeArgs& args) { run(pool, kRope, checked(args)); }
//
// The first implementation that the machine, the cap on instruction sets and the arguments allow runs. A
// refusal is a reason in words. Names and reasons are literals (registry/record.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.h"
#include "core/tensor.h"
#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "kernels/registry/isa.h"
#include "kernels/registry/proofs.h"
#include "kernels/registry/record.h"
#include "kernels/registry/views.h"

namespace switchyard {

// The GPUs that an implementation runs on. The emulated GPU has what `any` asks for.
enum class Gpu : std::uint8_t {
  any,     // compute capability 8 and later
  hopper,  // compute capability 9: wgmma, and copies of tensor maps
};

// One way to compute an op.
template <typename Args>
struct Implementation {
  // On CPUs, with the instruction set and those before it. `refusal` returns null to accept, or the reason
  // not to; a null function accepts everything. `bytes`: what its threads share, which a plan counts.
  constexpr Implementation(const char* called, Isa needs, void (*function)(ThreadPool&, const Args&),
                           const char* (*refusal)(const Args&) = nullptr,
                           std::size_t (*bytes)(const Args&) = nullptr)
      : name(called), isa(needs), run(function), refuses(refusal), workspace(bytes) {}
  // On a GPU: gives the work to the stream and returns before it is done. A plan calls it, too: then it takes
  // its memory and starts nothing (cuda/planned.h).
  // `of_card`: where it must have run on a card (proofs.h); null: nowhere.
  constexpr Implementation(const char* called, Gpu needs, void (*function)(const Args&),
                           const char* (*refusal)(const Args&) = nullptr, const Proof* of_card = nullptr)
      : name(called), on_gpu(true), gpu(needs), launch(function), refuses(refusal), proof(of_card) {}

  const char* name;
  bool on_gpu = false;
  Isa isa = Isa::ref;
  Gpu gpu = Gpu::any;
  void (*run)(ThreadPool&, const Args&) = nullptr;  // of a CPU
  void (*launch)(const Args&) = nullptr;            // of a GPU
  const char* (*refuses)(const Args&) = nullptr;
  std::size_t (*workspace)(const Args&) = nullptr;
  const Proof* proof = nullptr;
};

template <typename Args>
struct Kernel {
  using Rows = std::span<const Implementation<Args>>;
  // `count`: the work that a plan counts, under the kernel's name. `view`:
  // the argument whose memory says the device.
  constexpr Kernel(const char* called, Work (*count)(const Args&), TensorView Args::*view, Rows rows)
      : name(called), work(count), place(view), implementations(rows) {}
  constexpr Kernel(const char* called, Work (*count)(const Args&), const TensorView& (*view)(const Args&),
                   Rows rows)
      : name(called), work(count), find_place(view), implementations(rows) {}

  bool on_gpu(const Args& args) const { return (place == nullptr ? find_place(args) : args.*place).on_gpu(); }

  const char* name;
  Work (*work)(const Args&);
  TensorView Args::*place = nullptr;
  const TensorView& (*find_place)(const Args&) = nullptr;
  Rows implementations;
};

namespace registry {

// Error(runtime) that names the op and the view, the `number`th of its arguments' views.
[[noreturn]] void refuse_other_device(const char* op, int number, const TensorView& view);
// All views of an op's arguments are a GPU's, or none is: the row is chosen by one of them.
template <typename Args>
void require_one_device(const char* op, const Args& args, bool on_gpu) {
  int number = 0;
  for_each_view(args, [&](const TensorView& view) {
    ++number;
    if (view.on_gpu() != on_gpu && view.defined()) refuse_other_device(op, number, view);
  });
}

// The reason why this machine, or its cap, has no such thing; null: it has.
const char* missing(Isa isa);
const char* missing(Gpu gpu);

// The first of `rows` for the device that accepts. `refusal`:
// a row's reason, of one that the machine can run.
template <typename Row, typename Refusal>
const Row& choose(const char* table, const char* op, std::span<const Row> rows, bool on_gpu,
                  const Refusal& refusal) {
  DispatchRecord* const record = registry::record();
  const char *refused = nullptr, *first_reason = nullptr;  // the first refusal
  const Row* chosen = nullptr;
  for (const Row& row : rows) {
    if (row.on_gpu != on_gpu) continue;
    const bool earlier = chosen != nullptr;
    const char* reason = row.on_gpu ? missing(row.gpu) : missing(row.isa);
    const bool possible = reason == nullptr;
    if (!earlier) {
      if constexpr (requires { row.proof; }) {
        if (reason == nullptr) reason = unproven(row.proof);
      }
      if (reason == nullptr) reason = refusal(row);
      if (reason == nullptr) {
        chosen = &row;
        note_choice(op, row.name, refused, first_reason);
        if (record == nullptr) return row;
      } else {
        note_refusal(op, row.name, reason);
        if (first_reason == nullptr) refused = row.name, first_reason = reason;
      }
    }
    if (record != nullptr)
      record->add({table, op, row.name, row.on_gpu, row.isa, possible, chosen == &row,
                   reason == nullptr ? "" : reason});
  }
  CHECK(chosen != nullptr, "no implementation of {} for {} accepts: {}", op, on_gpu ? "GPUs" : "CPUs",
        first_reason == nullptr ? "none is listed" : first_reason);
  return *chosen;
}

}  // namespace registry

template <typename Args>
const Implementation<Args>& choose(const Kernel<Args>& kernel, const Args& args) {
  return registry::choose(
      kernel.name, kernel.name, kernel.implementations, kernel.on_gpu(args),
      [&](const Implementation<Args>& row) { return row.refuses == nullptr ? nullptr : row.refuses(args); });
}

// Computes the op. Error(runtime) where one argument is a GPU's and another is not. In a plan: counts its
// work, and has the chosen implementation's workspace taken.
template <typename Args>
void run(ThreadPool& pool, const Kernel<Args>& kernel, const Args& args) {
  Work work = kernel.work(args);
  work.kernel = kernel.name;
  if (pool.skips(work)) {
    if (!pool.counts_workspace()) return;
    const auto workspace = choose(kernel, args).workspace;
    const Buffer taken(workspace == nullptr ? 0 : workspace(args));
    return;
  }
  registry::require_one_device(kernel.name, args, kernel.on_gpu(args));
  const Implementation<Args>& chosen = choose(kernel, args);
  chosen.on_gpu ? chosen.launch(args) : chosen.run(pool, args);
}

}  // namespace switchyard
