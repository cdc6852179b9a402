// The causal convolution. A thread takes a channel and walks over a run of tokens, with what it has seen of
// the last ones in registers; so each element is read about once. Sums over tokens are of runs first.
#include <algorithm>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"
#include "kernels/delta_net/causal_conv_problem.h"
#include "kernels/delta_net/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kConvThreads = 128;
constexpr std::int64_t kForwardRun = 32, kBackwardRun = 64;  // tokens

template <typename T>
struct Conv {
  std::int64_t batch, length, channels;
  int taps;
  const T* x;
  const float* w;
  const std::int32_t* segments;
  T* tail;
  T* y;
  const T* dy;
  T* dx;
  float* dw;  // [runs, channels, taps]: a sum for each run of each sequence
};

// The tokens that a thread has seen of a channel:
// seen[back] is x of `back` tokens ago, and w[back] its weight.
template <typename T, int most>
class ConvWindow {
 public:
  // Before the token `token` of sequence `b`, with what `taps` - 1 tokens before the run do.
  GPU_FUNCTION ConvWindow(const Conv<T>& p, std::int64_t b, std::int64_t channel, std::int64_t token)
      : taps(p.taps) {
    const bool from_tail = token == 0 && p.tail != nullptr;
    const std::int64_t before = (b * (taps - 1) + taps - 2) * p.channels + channel;
    GPU_UNROLL
    for (int back = 0; back < most; ++back) {
      w[back] = back < taps ? p.w[channel * taps + taps - 1 - back] : 0.0f;
      seen[back] = from_tail && back < taps - 1 ? to_float(p.tail[before - back * p.channels]) : 0.0f;
    }
    reach = from_tail ? taps : -1;
  }

  GPU_FUNCTION void step(const Conv<T>& p, std::int64_t b, std::int64_t channel, std::int64_t token) {
    const std::int64_t at = b * p.length + token;
    GPU_UNROLL
    for (int back = most - 1; back > 0; --back) seen[back] = seen[back - 1];
    seen[0] = to_float(p.x[at * p.channels + channel]);
    const bool begins = p.segments != nullptr && token > 0 && p.segments[at] != p.segments[at - 1];
    reach = begins ? 0 : reach + 1;
  }

  // True where the token sees what is `back` tokens before it.
  GPU_FUNCTION bool sees(int back) const { return back < taps && back <= reach; }

  // The sum before silu.
  GPU_FUNCTION float sum() const {
    float result = 0;
    GPU_UNROLL
    for (int back = most - 1; back >= 0; --back) {
      if (sees(back)) result += w[back] * seen[back];
    }
    return result;
  }

  float w[most], seen[most];

 private:
  int taps;
  std::int64_t reach;  // tokens back to where the segment begins, or to where the walk began
};

// A run of tokens of a channel: block_index_y() counts the runs of a sequence, block_index_z() sequences.
struct ConvRun {
  std::int64_t b, channel, first, end;
};
template <typename T>
GPU_FUNCTION ConvRun conv_run(const Conv<T>& p, std::int64_t tokens) {
  const std::int64_t first = block_index_y() * tokens;
  return {block_index_z(), thread_of_grid(), first, first + tokens < p.length ? first + tokens : p.length};
}

template <typename T, int most>
GPU_KERNEL convolve(Conv<T> p) {
  const ConvRun run = conv_run(p, kForwardRun);
  if (run.channel >= p.channels) return;
  std::int64_t token = run.first >= p.taps ? run.first - (p.taps - 1) : 0;
  ConvWindow<T, most> window(p, run.b, run.channel, token);
  for (; token < run.first; ++token) window.step(p, run.b, run.channel, token);
  for (; token < run.end; ++token) {
    window.step(p, run.b, run.channel, token);
    const float z = window.sum();
    p.y[(run.b * p.length + token) * p.channels + run.channel] = from_float<T>(z / (1.0f + expf(-z)));
  }
}

// The last taps - 1 tokens of what was before and x. A thread takes a channel of a sequence.
template <typename T>
GPU_KERNEL move_conv_tail(Conv<T> p) {
  const std::int64_t channel = thread_of_grid(), b = block_index_z();
  if (channel >= p.channels) return;
  const int kept = p.taps - 1;
  T* const tail = p.tail + b * kept * p.channels + channel;
  const T* const x = p.x + b * p.length * p.channels + channel;
  // A token moves to no later place: its place has been read before.
  for (int i = 0; i < kept; ++i) {
    const std::int64_t s = p.length - kept + i;
    tail[i * p.channels] = s >= 0 ? x[s * p.channels] : tail[(kept + s) * p.channels];
  }
}

// A token's gradient is whole once the token that is taps - 1 later has been seen.
template <typename T, int most>
GPU_KERNEL convolve_backward(Conv<T> p) {
  const ConvRun run = conv_run(p, kBackwardRun);
  if (run.channel >= p.channels) return;
  std::int64_t token = run.first >= p.taps ? run.first - (p.taps - 1) : 0;
  ConvWindow<T, most> window(p, run.b, run.channel, token);
  float dx[most], dw[most];  // of the token that is so many ago; of the weight of what is
  GPU_UNROLL
  for (int back = 0; back < most; ++back) dx[back] = dw[back] = 0;
  for (; token < run.first; ++token) window.step(p, run.b, run.channel, token);
  for (; token < run.end + p.taps - 1; ++token) {
    GPU_UNROLL
    for (int back = most - 1; back > 0; --back) dx[back] = dx[back - 1];
    dx[0] = 0;
    if (token < p.length) {
      window.step(p, run.b, run.channel, token);
      const float z = window.sum(), sigmoid = 1.0f / (1.0f + expf(-z));
      const float dz = to_float(p.dy[(run.b * p.length + token) * p.channels + run.channel]) * sigmoid *
                       (1.0f + z * (1.0f - sigmoid));
      GPU_UNROLL
      for (int back = 0; back < most; ++back) {
        if (!window.sees(back)) continue;
        dx[back] += dz * window.w[back];
        if (token < run.end) dw[back] += dz * window.seen[back];
      }
    }
    const std::int64_t whole = token - (p.taps - 1);
    float value = 0;
    GPU_UNROLL
    for (int back = 0; back < most; ++back) {
      if (back == p.taps - 1) value = dx[back];
    }
    if (whole >= run.first)
      p.dx[(run.b * p.length + whole) * p.channels + run.channel] = from_float<T>(value);
  }
  const std::int64_t runs = (p.length + kBackwardRun - 1) / kBackwardRun;
  float* const sums = p.dw + ((run.b * runs + block_index_y()) * p.channels + run.channel) * p.taps;
  GPU_UNROLL
  for (int back = 0; back < most; ++back) {
    if (back < p.taps) sums[p.taps - 1 - back] = dw[back];
  }
}

GPU_KERNEL sum_conv_runs(const float* sums, std::int64_t runs, std::int64_t weights, float* dw) {
  const std::int64_t i = thread_of_grid();
  if (i >= weights) return;
  float sum = 0;
  for (std::int64_t run = 0; run < runs; ++run) sum += sums[run * weights + i];
  dw[i] = sum;
}

template <typename T>
Conv<T> conv_of(const TensorView& x, const TensorView& w, const TensorView& segments) {
  return {.batch = x.dim(0),
          .length = x.dim(1),
          .channels = x.dim(2),
          .taps = static_cast<int>(w.dim(1)),
          .x = x.device_data<T>(),
          .w = w.device_data<float>(),
          .segments = segments.device_data<std::int32_t>(),
          .tail = nullptr,
          .y = nullptr,
          .dy = nullptr,
          .dx = nullptr,
          .dw = nullptr};
}

template <typename T>
Launch launch_of_runs(const Conv<T>& p, std::int64_t runs) {
  return {.blocks = divide_up(p.channels, kConvThreads),
          .threads = kConvThreads,
          .blocks_y = static_cast<int>(runs),
          .blocks_z = static_cast<int>(p.batch)};
}

}  // namespace

void causal_conv(const CausalConvArgs& a) {
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    Conv<T> p = conv_of<T>(a.x, a.w, a.segments);
    p.tail = p.taps > 1 ? a.tail.device_data<T>() : nullptr;
    p.y = a.y.device_data<T>();
    launch(launch_of_runs(p, divide_up(p.length, kForwardRun)),
           p.taps <= 4 ? convolve<T, 4> : convolve<T, static_cast<int>(kMostConvTaps)>, p);
    if (p.tail != nullptr) launch(launch_of_runs(p, 1), move_conv_tail<T>, p);
  });
}

void causal_conv_backward(const CausalConvBackwardArgs& a) {
  const std::int64_t runs = divide_up(a.x.dim(1), kBackwardRun);
  const Workspace sums(a.x, static_cast<std::size_t>(a.x.dim(0) * runs * a.w.size()) * sizeof(float));
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    Conv<T> p = conv_of<T>(a.x, a.w, a.segments);
    p.dy = a.dy.device_data<T>();
    p.dx = a.dx.device_data<T>();
    p.dw = sums.data<float>();
    launch(launch_of_runs(p, runs),
           p.taps <= 4 ? convolve_backward<T, 4> : convolve_backward<T, static_cast<int>(kMostConvTaps)>, p);
  });
  launch(threads_for(a.w.size()), sum_conv_runs, sums.data<float>(), a.x.dim(0) * runs, a.w.size(),
         a.dw.device_data<float>());
}

}  // namespace switchyard::gpu
