// RowIndependence: while one lives, kernels compute each row of a product in a way that does not depend on
// how many other rows there are, so that a text's numbers are the same bits alone and in a batch.
//
// It counts for the whole process, since ranks change threads: other models in the process stay right, and
// lose only the speed of the kernels that are refused. Without one, products of few rows may be summed in
// another order than products of many.
//
// Callers do the rest: a call's number of tokens a row, and its first position, choose between kernels of
// attention (ops/attention_cache.h), so rows that differ there must not share a call (texts/scheduler.h).
#pragma once

namespace switchyard {

class RowIndependence {
 public:
  RowIndependence();
  ~RowIndependence();
  RowIndependence(const RowIndependence&) = delete;
  RowIndependence& operator=(const RowIndependence&) = delete;
};

// Returns whether one lives. Any thread may call it.
bool rows_are_independent();

}  // namespace switchyard
