#include "kernels/registry/row_independence.h"

#include <atomic>

namespace switchyard {
namespace {

std::atomic<int> wanted = 0;

}  // namespace

RowIndependence::RowIndependence() {
  ++wanted;
}

RowIndependence::~RowIndependence() {
  --wanted;
}

bool rows_are_independent() {
  return wanted.load(std::memory_order_relaxed) > 0;
}

}  // namespace switchyard
