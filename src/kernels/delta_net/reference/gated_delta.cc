// The scalar truth of the gated delta rule, token by token and in double.
#include <cmath>
#include <vector>

#include "kernels/delta_net/gated_delta_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

using Numbers = std::vector<double>;

// A vector in double, divided by its length where that is wanted, and the factor that did it.
struct Direction {
  Numbers values;
  double factor = 1;
};

Direction direction_of(const GatedDeltaProblem& p, const void* x, std::int64_t at_element) {
  Direction d;
  double squares = 0;
  for (std::int64_t i = 0; i < p.key_width; ++i) {
    d.values.push_back(static_cast<double>(at(x, p.dtype, at_element + i)));
    squares += d.values.back() * d.values.back();
  }
  if (!p.unit_vectors) return d;
  d.factor = 1 / std::sqrt(squares + static_cast<double>(kUnitEpsilon));
  for (double& x_i : d.values) x_i *= d.factor;
  return d;
}

// The gradient of what a direction was made of, from its own.
void put_direction_gradient(const GatedDeltaProblem& p, const Direction& d, const Numbers& gradient,
                            void* out, std::int64_t at_element) {
  double along = 0;
  for (std::size_t i = 0; p.unit_vectors && i < gradient.size(); ++i) along += d.values[i] * gradient[i];
  for (std::size_t i = 0; i < gradient.size(); ++i)
    put(out, p.dtype, at_element + static_cast<std::int64_t>(i),
        static_cast<float>(d.factor * (gradient[i] - d.values[i] * along)));
}

// One value head of one sequence.
class Head {
 public:
  Head(const GatedDeltaProblem& p, std::int64_t batch, std::int64_t head)
      : p_(p),
        batch_(batch),
        head_(head),
        dk_(static_cast<std::size_t>(p.key_width)),
        dv_(static_cast<std::size_t>(p.value_width)),
        state(dk_ * dv_),
        error(dv_) {}

  // From the state before a token to that after it.
  void step(std::int64_t token) {
    const std::int64_t number = p_.number_at(batch_, token, head_);
    if (p_.begins(batch_, token)) std::fill(state.begin(), state.end(), 0.0);
    decay = std::exp(static_cast<double>(p_.g[number]));
    beta = static_cast<double>(p_.beta[number]);
    const std::int64_t key = p_.key_at(batch_, token, head_ / p_.group());
    q = direction_of(p_, p_.q, key);
    k = direction_of(p_, p_.k, key);
    for (double& s : state) s *= decay;
    for (std::size_t j = 0; j < dv_; ++j) {
      error[j] = value(p_.v, token, j);
      for (std::size_t i = 0; i < dk_; ++i) error[j] -= state[i * dv_ + j] * k.values[i];
    }
    for (std::size_t i = 0; i < dk_; ++i) {
      for (std::size_t j = 0; j < dv_; ++j) state[i * dv_ + j] += k.values[i] * beta * error[j];
    }
  }
  double value(const void* x, std::int64_t token, std::size_t j) const {
    return static_cast<double>(
        at(x, p_.dtype, p_.value_at(batch_, token, head_) + static_cast<std::int64_t>(j)));
  }

 private:
  const GatedDeltaProblem& p_;
  std::int64_t batch_, head_;
  std::size_t dk_, dv_;

 public:
  Numbers state, error;  // after the last step; what that step's value was beyond what the state gave
  Direction q, k;
  double decay = 0, beta = 0;
};

void forward(const GatedDeltaProblem& p, std::int64_t batch, std::int64_t head) {
  Head h(p, batch, head);
  float* const kept =
      p.state == nullptr ? nullptr : p.state + (batch * p.value_heads + head) * p.key_width * p.value_width;
  for (std::size_t i = 0; kept != nullptr && i < h.state.size(); ++i)
    h.state[i] = static_cast<double>(kept[i]);
  for (std::int64_t t = 0; t < p.length; ++t) {
    h.step(t);
    for (std::int64_t j = 0; j < p.value_width; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < p.key_width; ++i)
        sum += h.state[static_cast<std::size_t>(i * p.value_width + j)] *
               h.q.values[static_cast<std::size_t>(i)];
      put(p.out, p.dtype, p.value_at(batch, t, head) + j,
          static_cast<float>(sum * static_cast<double>(p.scale)));
    }
  }
  for (std::size_t i = 0; kept != nullptr && i < h.state.size(); ++i)
    kept[i] = static_cast<float>(h.state[i]);
}

// Adds to the gradients of the key head's directions, [S,Dk].
void backward(const GatedDeltaProblem& p, std::int64_t batch, std::int64_t head, Numbers& dq, Numbers& dk) {
  const auto kw = static_cast<std::size_t>(p.key_width), vw = static_cast<std::size_t>(p.value_width);
  const auto scale = static_cast<double>(p.scale);
  std::vector<Head> after;  // each token
  for (std::int64_t t = 0; t < p.length; ++t) {
    after.push_back(after.empty() ? Head(p, batch, head) : after.back());
    after.back().step(t);
  }
  Numbers ds(kw * vw), du(vw);
  for (std::int64_t t = p.length - 1; t >= 0; --t) {
    const Head& h = after[static_cast<std::size_t>(t)];
    const auto row = static_cast<std::size_t>(t) * kw;
    std::fill(du.begin(), du.end(), 0.0);
    for (std::size_t i = 0; i < kw; ++i) {
      for (std::size_t j = 0; j < vw; ++j) {
        const double dout = h.value(p.dout, t, j) * scale;
        dq[row + i] += h.state[i * vw + j] * dout;
        ds[i * vw + j] += h.q.values[i] * dout;
        dk[row + i] += ds[i * vw + j] * h.beta * h.error[j];
        du[j] += ds[i * vw + j] * h.k.values[i];
      }
    }
    double dbeta = 0, dg = 0;
    for (std::size_t j = 0; j < vw; ++j) {
      dbeta += du[j] * h.error[j];
      put(p.dv, p.dtype, p.value_at(batch, t, head) + static_cast<std::int64_t>(j),
          static_cast<float>(h.beta * du[j]));
    }
    for (std::size_t i = 0; i < kw; ++i) {
      for (std::size_t j = 0; j < vw; ++j) {
        // The state after its decay, without what the token added.
        const double decayed = h.state[i * vw + j] - h.k.values[i] * h.beta * h.error[j];
        dk[row + i] -= decayed * h.beta * du[j];
        ds[i * vw + j] -= h.k.values[i] * h.beta * du[j];
        dg += ds[i * vw + j] * decayed;
        ds[i * vw + j] *= h.decay;
      }
    }
    const std::int64_t number = p.number_at(batch, t, head);
    p.dbeta[number] = static_cast<float>(dbeta);
    p.dg[number] = static_cast<float>(dg);
    if (p.begins(batch, t)) std::fill(ds.begin(), ds.end(), 0.0);
  }
}

}  // namespace

void gated_delta(const GatedDeltaProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin * p.group(); i < end * p.group(); ++i)
    forward(p, i / p.value_heads, i % p.value_heads);
}

void gated_delta_backward(const GatedDeltaProblem& p, std::int64_t begin, std::int64_t end) {
  const auto width = static_cast<std::size_t>(p.key_width);
  for (std::int64_t pair = begin; pair < end; ++pair) {
    const std::int64_t batch = pair / p.key_heads, key_head = pair % p.key_heads;
    Numbers dq(static_cast<std::size_t>(p.length) * width), dk(dq.size());
    for (std::int64_t i = 0; i < p.group(); ++i) backward(p, batch, key_head * p.group() + i, dq, dk);
    for (std::int64_t t = 0; t < p.length; ++t) {
      const std::int64_t at_key = p.key_at(batch, t, key_head);
      const auto row = static_cast<std::ptrdiff_t>(t) * p.key_width;
      const auto of_token = [&](const Numbers& x) {
        return Numbers(x.begin() + row, x.begin() + row + p.key_width);
      };
      put_direction_gradient(p, direction_of(p, p.q, at_key), of_token(dq), p.dq, at_key);
      put_direction_gradient(p, direction_of(p, p.k, at_key), of_token(dk), p.dk, at_key);
    }
  }
}

}  // namespace switchyard::ref
