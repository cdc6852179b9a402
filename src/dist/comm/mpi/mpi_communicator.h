// Collectives over processes: each rank sends what others need straight to them and sums what it owns in
// group order with the thread backend's own summation, so both give the same bits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "dist/comm/communicator.h"
#include "dist/comm/mpi/world.h"
#include "dist/comm/shared_objects.h"

namespace switchyard {

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(World& world, Wire& wire, SharedObjects& objects, World::Caller caller);
  ~MpiCommunicator() override;

  int rank() const override { return caller_.rank; }
  int size() const override { return world_.ranks(); }
  bool shares_memory() const override { return false; }
  int process_of(int rank) const override { return world_.process_of(rank); }
  std::shared_ptr<void> shared(const std::string& key,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return objects_.get(key, make);
  }

 protected:
  std::unique_ptr<Communicator> second_channel() override;
  void failed(const std::exception& failure) override;
  double do_all_gather(const Group& group, const CollectiveCall& call, const void* in, void* out) override;
  double do_reduce_scatter(const Group& group, const CollectiveCall& call, const void* in,
                           void* out) override;
  double do_all_reduce(const Group& group, const CollectiveCall& call, void* data) override;
  double do_all_to_all(const Group& group, const CollectiveCall& call, const void* in, void* out) override;
  double do_ragged_all_to_all(const Group& group, const CollectiveCall& call,
                              const RaggedSide& side) override;
  double do_broadcast(const Group& group, const CollectiveCall& call, void* data) override;
  double do_barrier(const Group& group, const CollectiveCall& call) override;

 private:
  class Exchange;

  World& world_;
  Wire& wire_;
  SharedObjects& objects_;
  const World::Caller caller_;
  std::vector<std::byte> scratch_;
  std::vector<const void*> inputs_;
};

}  // namespace switchyard
