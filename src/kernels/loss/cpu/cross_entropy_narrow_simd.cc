// The loss with its gradients for AVX2 and AVX-512, in fp32, where the model is so narrow that to pack
// logits' gradients for gemm would take as long as to multiply them. It is attention's backward pass without
// values: a panel of rows is a lane each (attention_product-inl.h), the vocabulary's entries are the keys.
//
// 1. Logits [entry][row] of a block of rows (loss_rows_at_once) are made once and wait in fp32.
// 2. A chunk of the vocabulary has sums of its own, also of dhidden, which are added
// up in order: chunks follow
//    from the shape alone.
// 3. dweight waits in fp32, [entry][emb], where there are several blocks of rows.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/loss/cpu/cross_entropy_narrow_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <cmath>
#include <vector>

#include "core/tensor.h"
#include "hwy/highway.h"
#include "kernels/attention/cpu/attention_lanes-inl.h"
#include "kernels/cpu/exp_lanes-inl.h"
#include "kernels/loss/cpu/narrow_loss_sizes.h"
#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

static_assert(cpu::NarrowLossSizes::kEntries == kTile && cpu::NarrowLossSizes::kRows == kTile);

// The matrix row `row` of [.., width].
HeadTile rows_of(const void* x, DType dtype, std::int64_t row, std::int64_t rows, std::int64_t width) {
  const std::int64_t offset = row * width * static_cast<std::int64_t>(size_of(dtype));
  return {static_cast<const std::byte*>(x) + offset, dtype, width, rows, width};
}

class NarrowLoss {
 public:
  explicit NarrowLoss(const CrossEntropyProblem& problem)
      : a_(problem),
        sizes_(problem),
        emb_rows_(in_units(problem.emb, kRowUnit)),
        weight_stride_(left_stride(problem.emb)),
        buffer_(sizes_.bytes()),
        arrays_(reinterpret_cast<float*>(buffer_.data())),
        logits_(arrays_.take(sizes_.logits())),
        hidden_t_(arrays_.take(sizes_.hidden())),
        hidden_(arrays_.take(sizes_.hidden())),
        dhidden_(arrays_.take(sizes_.chunks * sizes_.hidden())),
        maxima_(arrays_.take(sizes_.chunks * sizes_.block)),
        sums_(arrays_.take(sizes_.chunks * sizes_.block)),
        row_values_(arrays_.take(2 * sizes_.block)),
        dweight_(arrays_.take(sizes_.dweight())) {}

  void run(ThreadPool& pool) {
    std::fill(a_.target_logit, a_.target_logit + a_.rows, 0.0f);
    for (begin_ = 0; begin_ < a_.rows; begin_ += sizes_.block) {
      count_ = std::min(sizes_.block, a_.rows - begin_);
      row_tiles_ = (count_ + kTile - 1) / kTile;
      pool.for_range(row_tiles_, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t t = first; t < last; ++t) load_hidden(t);
      });
      pool.for_range(sizes_.chunks, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t chunk = first; chunk < last; ++chunk) make_logits(chunk);
      });
      for (std::int64_t r = 0; r < count_; ++r) finish_row(r);
      (*a_.summed)(begin_, begin_ + count_);
      for (std::int64_t r = 0; r < row_tiles_ * kTile; ++r) {
        row_values_[r] = r < count_ ? a_.lse[begin_ + r] : 0.0f;
        row_values_[sizes_.block + r] = r < count_ ? a_.softmax[begin_ + r] : 0.0f;
      }
      pool.for_range(sizes_.chunks, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t chunk = first; chunk < last; ++chunk) add_gradients(chunk);
      });
      pool.for_range(row_tiles_, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t t = first; t < last; ++t) store_dhidden(t);
      });
    }
  }

 private:
  // [emb][kPanel] of the panel that begins with a row of the block, and [emb panel][kTile][kPanel] of a tile.
  float* hidden_t(std::int64_t row) const { return hidden_t_ + row * a_.emb; }
  float* hidden(std::int64_t tile) const { return hidden_ + tile * kTile * in_units(a_.emb, kPanel); }
  // [emb, in units of rows][kPanel]
  float* dhidden(std::int64_t chunk, std::int64_t row) const {
    return dhidden_ + chunk * sizes_.hidden() + row * emb_rows_;
  }
  // [kTile entries][kPanel]
  float* logits(std::int64_t tile, std::int64_t row) const {
    return logits_ + (tile * sizes_.block + row) * kTile;
  }
  std::int64_t entries_of(std::int64_t tile) const { return std::min(kTile, a_.vocab - tile * kTile); }
  template <typename Body>
  void for_each_tile(std::int64_t chunk, const Body& body) const {
    for (std::int64_t t = chunk * sizes_.chunk; t < std::min((chunk + 1) * sizes_.chunk, sizes_.tiles); ++t)
      body(t);
  }
  float* weight_space() const {
    static thread_local std::vector<float> space;
    space.resize(static_cast<std::size_t>(kTile * weight_stride_));
    return space.data();
  }

  void load_hidden(std::int64_t tile) const {
    const HeadTile x =
        rows_of(a_.hidden, a_.dtype, begin_ + tile * kTile, std::min(kTile, count_ - tile * kTile), a_.emb);
    load_column_panels(x, 1, hidden_t(tile * kTile));
    load_row_panels(x, 1, hidden(tile));
  }

  // weight [kTile entries][weight_stride_]
  void load_weight(std::int64_t tile, float* weight) const {
    const std::int64_t entries = entries_of(tile), first = tile * kTile;
    if (a_.weight_vocab_major)
      return load_rows(rows_of(a_.weight, a_.dtype, first, entries, a_.emb), weight_stride_, weight);
    std::fill(weight, weight + kTile * weight_stride_, 0.0f);
    const HeadTile whole{a_.weight, a_.dtype, a_.vocab, a_.emb, entries};
    whole.typed([&](const auto* x) {
      std::int64_t e = 0;
      for (; e + 4 <= a_.emb; e += 4)
        lanes::transpose_four(x + e * a_.vocab + first, a_.vocab, entries, weight + e, weight_stride_);
      for (; e < a_.emb; ++e) {
        for (std::int64_t v = 0; v < entries; ++v)
          weight[v * weight_stride_ + e] = static_cast<float>(x[e * a_.vocab + first + v]);
      }
    });
  }

  void make_logits(std::int64_t chunk) const {
    float* const weight = weight_space();
    float *const maxima = maxima_ + chunk * sizes_.block, *const sums = sums_ + chunk * sizes_.block;
    std::fill(maxima, maxima + sizes_.block, -kInfinity);
    std::fill(sums, sums + sizes_.block, 0.0f);
    for_each_tile(chunk, [&](std::int64_t tile) {
      load_weight(tile, weight);
      const std::int64_t entries = entries_of(tile);
      for (std::int64_t row = 0; row < count_; row += kPanel) {
        float* const x = logits(tile, row);
        product<Order::rows, Start::zero>(in_units(entries, kRowUnit), a_.emb, {weight, weight_stride_},
                                          {hidden_t(row), kPanel}, {x, kPanel});
        for (std::int64_t i = 0; i < kPanel; i += kStep)
          add_sums(x + i, entries, maxima + row + i, sums + row + i);
      }
    });
  }

  static void add_sums(const float* x, std::int64_t entries, float* maximum, float* sum) {
    const V before = lanes::load(maximum);
    V now = before;
    for (std::int64_t j = 0; j < entries; ++j) now = hn::Max(now, lanes::load(x + j * kPanel));
    V total = hn::Mul(lanes::load(sum), lanes::exp_of_difference(before, now));
    for (std::int64_t j = 0; j < entries; ++j)
      total = hn::Add(total, lanes::exp_of_difference(lanes::load(x + j * kPanel), now));
    lanes::store(now, maximum);
    lanes::store(total, sum);
  }

  void finish_row(std::int64_t r) const {
    float maximum = -kInfinity, sum = 0;
    for (std::int64_t c = 0; c < sizes_.chunks; ++c)
      maximum = std::max(maximum, maxima_[c * sizes_.block + r]);
    for (std::int64_t c = 0; c < sizes_.chunks; ++c) {
      const std::int64_t at = c * sizes_.block + r;
      sum += sums_[at] * std::exp(maxima_[at] - maximum);
    }
    a_.lse[begin_ + r] = maximum + std::log(sum);
    const std::int64_t target = a_.targets[begin_ + r] - a_.vocab_begin;
    if (target >= 0 && target < a_.vocab) a_.target_logit[begin_ + r] = *logit_at(target, r);
  }

  float* logit_at(std::int64_t entry, std::int64_t r) const {
    return logits(entry / kTile, r / kPanel * kPanel) + entry % kTile * kPanel + r % kPanel;
  }

  // gradient [kTile entries][kTile rows], of a panel of rows.
  void make_gradients(std::int64_t tile, std::int64_t row, float* gradient) const {
    const float* const x = logits(tile, row);
    const std::int64_t entries = entries_of(tile);
    for (std::int64_t i = 0; i < kPanel; i += kStep) {
      const V lse = lanes::load(row_values_ + row + i);
      const V coefficient = lanes::load(row_values_ + sizes_.block + row + i);
      for (std::int64_t j = 0; j < entries; ++j) {
        const V softmax = lanes::exp_of_difference(lanes::load(x + j * kPanel + i), lse);
        lanes::store(hn::Mul(softmax, coefficient), gradient + j * kTile + i);
      }
    }
    const std::int64_t first = a_.vocab_begin + tile * kTile;
    for (std::int64_t i = 0; i < std::min(kPanel, count_ - row); ++i) {
      const std::int64_t target = a_.targets[begin_ + row + i] - first;
      if (target >= 0 && target < entries) gradient[target * kTile + i] -= a_.target[begin_ + row + i];
    }
  }

  void add_gradients(std::int64_t chunk) const {
    const std::int64_t dweight_stride = in_units(a_.emb, kPanel);
    float* const weight = weight_space();
    static thread_local std::vector<float> space;
    space.resize(static_cast<std::size_t>(kTile * (kTile + dweight_stride)));
    float *const gradient = space.data(), *const own_dweight = gradient + kTile * kTile;
    std::fill(dhidden(chunk, 0), dhidden(chunk, 0) + sizes_.hidden(), 0.0f);
    for_each_tile(chunk, [&](std::int64_t tile) {
      load_weight(tile, weight);
      const std::int64_t entries = entries_of(tile), entry_rows = in_units(entries, kRowUnit);
      float* const dweight = sizes_.blocks == 1 ? own_dweight : dweight_ + tile * kTile * dweight_stride;
      if (begin_ == 0) std::fill(dweight, dweight + kTile * dweight_stride, 0.0f);
      for (std::int64_t row = 0; row < count_; row += kTile) {
        const std::int64_t rows = std::min(kTile, count_ - row);
        for (std::int64_t i = 0; i < rows; i += kPanel) {
          make_gradients(tile, row + i, gradient + i);
          product<Order::columns, Start::sum>(emb_rows_, entries, {weight, weight_stride_},
                                              {gradient + i, kTile}, {dhidden(chunk, row + i), kPanel});
        }
        for (std::int64_t e = 0; e < a_.emb; e += kPanel) {
          product<Order::rows, Start::sum>(entry_rows, rows, {gradient, kTile},
                                           {hidden(row / kTile) + e * kTile, kPanel},
                                           {dweight + e, dweight_stride});
        }
      }
      if (begin_ + count_ == a_.rows) store_dweight(tile, dweight, dweight_stride);
    });
  }

  void store_dweight(std::int64_t tile, const float* x, std::int64_t stride) const {
    const std::int64_t entries = entries_of(tile), first = tile * kTile;
    if (a_.weight_vocab_major)
      return store_rows(x, stride, rows_of(a_.dweight, a_.dtype, first, entries, a_.emb));
    float row[kTile];
    const HeadTile whole{a_.dweight, a_.dtype, a_.vocab, a_.emb, entries};
    whole.typed([&]<typename T>(const T* to) {
      for (std::int64_t e = 0; e < a_.emb; ++e) {
        for (std::int64_t v = 0; v < entries; ++v) row[v] = x[v * stride + e];
        store_row(row, entries, const_cast<T*>(to) + e * a_.vocab + first);
      }
    });
  }

  void store_dhidden(std::int64_t tile) const {
    float* const sum = dhidden(0, tile * kTile);
    for (std::int64_t c = 1; c < sizes_.chunks; ++c) {
      const float* const more = dhidden(c, tile * kTile);
      for (std::int64_t i = 0; i < kTile * emb_rows_; i += kStep)
        lanes::store(hn::Add(lanes::load(sum + i), lanes::load(more + i)), sum + i);
    }
    float ones[kTile];
    std::fill(ones, ones + kTile, 1.0f);
    std::vector<float> row_space(static_cast<std::size_t>(kPanel * emb_rows_));
    store_columns(sum, emb_rows_, ones,
                  rows_of(a_.dhidden, DType::f32, begin_ + tile * kTile,
                          std::min(kTile, count_ - tile * kTile), a_.emb),
                  row_space.data());
  }

  const CrossEntropyProblem& a_;
  const cpu::NarrowLossSizes sizes_;
  const std::int64_t emb_rows_, weight_stride_;
  Buffer buffer_;
  Arrays arrays_;
  float *const logits_, *const hidden_t_, *const hidden_, *const dhidden_, *const maxima_, *const sums_;
  float* const row_values_;  // lse and softmax_coefficient of the block
  float* const dweight_;
  std::int64_t begin_ = 0, count_ = 0, row_tiles_ = 0;  // of the block of rows
};

}  // namespace

void narrow_gradients_simd(ThreadPool& pool, const CrossEntropyProblem& a) {
  NarrowLoss(a).run(pool);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

SWITCHYARD_SIMD_EXPORT(narrow_gradients, (ThreadPool & pool, const CrossEntropyProblem& a), (pool, a))

std::size_t narrow_gradients_bytes(const CrossEntropyProblem& a) {
  return NarrowLossSizes(a).bytes();
}

const char* narrow_gradients_refuse(const CrossEntropyProblem& a) {
  // Beyond, an entry's weights and a panel's hidden states leave the first cache, and gemm packs for many.
  constexpr std::int64_t kMostEmb = 256;
  if (a.emb > kMostEmb) return "takes at most 256 model dims";
  if (a.rows == 0 || a.vocab == 0) return "has neither empty rows nor an empty vocabulary";
  return a.logit_soft_cap > 0 ? "has no soft cap" : nullptr;
}

}  // namespace switchyard::cpu
#endif
