// Collectives over processes: each rank sends data directly to the ranks that need it and sums its own part
// in group order with the thread backend's summation, so both backends give the same bits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/mpi/world.h"
#include "parallel/comm/process_backend.h"
#include "parallel/comm/shared_objects.h"

namespace switchyard {

class MpiBackend : public ProcessBackend {
 public:
  MpiBackend(World& world, Wire& wire, SharedObjects& objects, World::Caller caller);
  ~MpiBackend() override;

  int rank() const override { return caller_.rank; }
  int size() const override { return world_.ranks(); }
  int process_of(int rank) const override { return world_.process_of(rank); }
  Position& position() override { return position_; }
  std::shared_ptr<void> shared(const std::string& key,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return objects_.get(key, make);
  }
  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  std::unique_ptr<CommBackend> second_channel() override { return second_process_channel(); }
  std::unique_ptr<ProcessBackend> second_process_channel() override;
  void failed(const std::exception& failure) override;
  double agree(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  void wait_until(const ProcessGroup& group, const CollectiveCall& call,
                  const std::function<bool()>& done) override;

 private:
  class Exchange;

  double all_gather(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);
  double reduce_scatter(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);
  double all_reduce(const ProcessGroup& group, const CollectiveCall& call, void* data);
  double all_to_all(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);
  double ragged_all_to_all(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);
  double broadcast(const ProcessGroup& group, const CollectiveCall& call, void* data);

  World& world_;
  Wire& wire_;
  SharedObjects& objects_;
  const World::Caller caller_;
  Position position_;
  std::vector<std::byte> scratch_;
  std::vector<const void*> inputs_;
};

}  // namespace switchyard
