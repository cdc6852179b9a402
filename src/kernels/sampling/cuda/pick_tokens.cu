// Tokens from rows of logits, in three kernels: masks, penalties and biases, with the largest logit of each
// piece of a row; sums of weights by the first digit of tokens' keys; and the search for each row's token
// (token_search.h). Rows have two jobs, the token and its log probabilities, which begin from other logits.
#include <algorithm>

#include "kernels/cuda/workspace.h"
#include "kernels/sampling/cuda/pick_job.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

GPU_FUNCTION void mask_piece(const Job& p, const PackedPick& pick, float* to, std::int32_t begin,
                             std::int32_t end) {
  const auto* const bits = reinterpret_cast<const std::uint32_t*>(p.lists + pick.bits_at);
  const float* const from = p.given(pick);
  for (std::int32_t i = begin + thread_index(); i < end; i += kThreads)
    to[i] = pick.bits == 0 || (bits[i / 32] >> (i % 32) & 1) != 0 ? from[i] : kNever;
}

// With the operations of pick_token() of the host.
GPU_FUNCTION void change_piece(const Job& p, const PackedPick& pick, float* to, std::int32_t begin,
                               std::int32_t end) {
  const auto* const seen = reinterpret_cast<const PackedSeen*>(p.lists + pick.seen_at);
  for (std::int32_t i = thread_index(); i < pick.seen; i += kThreads) {
    const auto [token, made] = seen[i];
    if (token < begin || token >= end) continue;
    auto logit = static_cast<double>(to[token]);
    logit = logit < 0 ? double_product(logit, pick.repetition_penalty)
                      : double_quotient(logit, pick.repetition_penalty);
    if (made != 0) {
      const double often = double_product(static_cast<double>(made), pick.frequency_penalty);
      logit = double_difference(double_difference(logit, often), pick.presence_penalty);
    }
    to[token] = static_cast<float>(logit);
  }
  barrier();
  const auto* const biases = reinterpret_cast<const PackedBias*>(p.lists + pick.bias_at);
  for (std::int32_t i = thread_index(); i < pick.biases; i += kThreads) {
    const auto [bias, token] = biases[i];
    if (token >= begin && token < end)
      to[token] = static_cast<float>(double_sum(static_cast<double>(to[token]), bias));
  }
  barrier();
}

// Block (piece, row). It also sets the sums to 0 that the next kernel adds to.
GPU_KERNEL change_logits(Job p) {
  GPU_SHARED(float, tops, 2 * kWarps);
  GPU_SHARED(std::int32_t, bad, 1);
  const int row = block_index_y(), thread = thread_index();
  const auto piece = static_cast<std::int32_t>(block_index());
  const PackedPick& pick = p.picks[row];
  for (int i = piece * kThreads + thread; i < kJobs * kBins; i += p.pieces * kThreads)
    p.sums_of(row, 0)[i] = 0;
  if (piece == 0 && thread == 0) p.log_sums[row] = 0;
  if (thread == 0) *bad = kNone;
  const std::int32_t begin = piece * kPiece, end = begin + kPiece < pick.vocab ? begin + kPiece : pick.vocab;
  const float* const from = p.given(pick);
  if (pick.changes != 0) mask_piece(p, pick, p.changed + row * p.width, begin, end);
  barrier();
  if (pick.changes != 0) change_piece(p, pick, p.changed + row * p.width, begin, end);
  const float* const now = p.of_job(pick, row, kPickJob);
  float top = kNever, top_as_given = kNever;
  for (std::int32_t i = begin + thread; i < end; i += kThreads) {
    const float logit = from[i];
    top_as_given = larger(logit, top_as_given);
    top = larger(now[i], top);
    if ((bits_of(logit) & 0x7fffffffu) >= 0x7f800000u) atomic_least(bad, i);
  }
  top = warp_max(top);
  top_as_given = warp_max(top_as_given);
  if (thread % kWarp == 0) {
    tops[thread / kWarp] = top;
    tops[kWarps + thread / kWarp] = top_as_given;
  }
  barrier();
  if (thread != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) {
    top = larger(tops[warp], top);
    top_as_given = larger(tops[kWarps + warp], top_as_given);
  }
  p.numbers[static_cast<std::int64_t>(row) * p.pieces + piece] = {top, top_as_given, *bad};
}

// The sum of a piece's weights, which have one first digit in each half.
GPU_FUNCTION void add_by_id(const Weighing& w, const float* logits, std::int32_t begin, std::int32_t end,
                            std::uint64_t* sums) {
  for (std::int32_t half = begin; half < end; half += kBins) {
    const std::int32_t half_end = half + kBins < end ? half + kBins : end;
    std::uint64_t sum = 0;
    for (std::int32_t i = half + thread_index(); i < half_end; i += kThreads)
      sum += weight_in(w, logits[i], key_in(w, logits[i], i));
    sum = warp_sum(sum);
    if (thread_index() % kWarp == 0 && sum != 0) atomic_add_long(sums + half / kBins, sum);
  }
}

GPU_FUNCTION void add_by_rank(const Weighing& w, const float* logits, std::int32_t begin, std::int32_t end,
                              std::uint64_t* of_block, std::uint64_t* sums) {
  for (int i = thread_index(); i < kBins; i += kThreads) of_block[i] = 0;
  barrier();
  for (std::int32_t i = begin + thread_index(); i < end; i += kThreads) {
    const std::uint64_t key = key_in(w, logits[i], i), weight = weight_in(w, logits[i], key);
    if (weight != 0) atomic_add_long(of_block + (key >> shift_of_digit(0)), weight);
  }
  barrier();
  for (int i = thread_index(); i < kBins; i += kThreads) {
    if (of_block[i] != 0) atomic_add_long(sums + i, of_block[i]);
  }
}

// Block (piece, row, job).
GPU_KERNEL sum_weights(Job p) {
  GPU_SHARED(std::uint64_t, of_block, kBins);
  GPU_SHARED(float, scratch, kWarps);
  const int row = block_index_y(), job = block_index_z();
  const PackedPick& pick = p.picks[row];
  const bool draws = pick.order == PickOrder::by_id || pick.order == PickOrder::by_rank;
  if (job == kPickJob ? !draws : pick.most_probable < 0) return;
  const auto begin = static_cast<std::int32_t>(block_index()) * kPiece;
  if (begin >= pick.vocab) return;
  const std::int32_t end = begin + kPiece < pick.vocab ? begin + kPiece : pick.vocab;
  const float* const logits = p.of_job(pick, row, job);
  const float top = top_of_row(p, row, job, scratch);
  const Weighing weighing = first_weighing(pick, job, top);
  if (weighing.by_id)
    add_by_id(weighing, logits, begin, end, p.sums_of(row, job));
  else if (job == kPickJob || pick.most_probable > 0)
    add_by_rank(weighing, logits, begin, end, of_block, p.sums_of(row, job));
  if (job != kLogProbJob) return;
  std::uint64_t sum = 0;
  for (std::int32_t i = begin + thread_index(); i < end; i += kThreads)
    sum += weight_of_logit(logits[i], top, 1, pick.weight_bits);
  sum = warp_sum(sum);
  if (thread_index() % kWarp == 0 && sum != 0) atomic_add_long(p.log_sums + row, sum);
}

// ---- The last kernel: a block a row and job

constexpr std::int32_t kListed = 4096;

// The tokens whose first digit is no larger, or, `only`, equal: a list in shared memory where that has room,
// else all of them. All threads of the block call it.
GPU_FUNCTION Among tokens_up_to(const float* logits, std::int32_t vocab, std::int32_t digit, bool only,
                                std::int32_t* list, std::int32_t* count) {
  if (thread_index() == 0) *count = 0;
  barrier();
  for (std::int32_t i = thread_index(); i < vocab; i += kSearchThreads) {
    const auto of_token = static_cast<std::int32_t>(rank_of_logit(logits[i]) >> (32 - kSearchBits));
    if (only ? of_token != digit : of_token > digit) continue;
    const std::int32_t at = atomic_add(count, 1);
    if (at < kListed) list[at] = i;
  }
  barrier();
  if (*count > kListed) return {logits, nullptr, 0, vocab};
  return {logits, list, 0, *count};
}

// The search of a block: its first digit by the sums that are there, then among fewer tokens.
struct Search {
  SearchMemory memory;
  std::int32_t *list, *count;

  // Returns the digit, or -1. All threads of the block call it.
  GPU_FUNCTION std::int32_t first_digit(const std::uint64_t* sums, const Passed& how) const {
    for (int i = thread_index(); i < kBins; i += kSearchThreads) memory.sums[i] = sums[i];
    barrier();
    find_digit(memory, how, true);
    return *memory.digit;
  }
};

GPU_FUNCTION std::int32_t pick_by_id(const Search& search, const PackedPick& pick, const float* logits,
                                     float top, const std::uint64_t* sums) {
  const Passed draw{Passed::Of::draw, 0, 1, pick.uniform};
  const std::int32_t digit = search.first_digit(sums, draw);
  if (digit < 0) return 0;
  const std::int32_t first = digit * kBins, rest = pick.vocab - first;
  const std::uint64_t key =
      find_key(search.memory, {logits, nullptr, first, rest < kBins ? rest : kBins}, drawing(pick, top), draw,
               kFirstDigitOfId + 1, static_cast<std::uint64_t>(digit));
  return static_cast<std::int32_t>(key);
}

GPU_FUNCTION std::int32_t pick_by_rank(const Search& search, const PackedPick& pick, const float* logits,
                                       float top, const std::uint64_t* sums) {
  // Each kind reads only the numbers that it needs.
  const auto passed = [&](Passed::Of of) { return Passed{of, pick.top_k, pick.share, pick.uniform}; };
  const bool has_count = pick.top_k > 0, has_share = pick.share < 1;
  const Passed first = passed(has_count   ? Passed::Of::count
                              : has_share ? Passed::Of::share
                                          : Passed::Of::draw);
  const std::int32_t digit = search.first_digit(sums, first);
  if (digit < 0 && !has_count) return 0;  // no logit is a number
  const Weighing first_of = first_weighing(pick, kPickJob, top);
  // Fewer tokens than are counted: all are kept.
  Among among{logits, nullptr, 0, pick.vocab};
  std::uint64_t last = kNoKey;
  if (digit >= 0) {
    among = tokens_up_to(logits, pick.vocab, digit, !has_count && !has_share, search.list, search.count);
    last = find_key(search.memory, among, first_of, first, 1, static_cast<std::uint64_t>(digit));
  }
  if (has_count && has_share) {
    Weighing kept = sharing(pick, top);
    kept.last = last;
    last = find_key(search.memory, among, kept, passed(Passed::Of::share), 0, 0);
  }
  if (has_count || has_share) {
    Weighing kept = drawing(pick, top);
    kept.last = last;
    last = find_key(search.memory, among, kept, passed(Passed::Of::draw), 0, 0);
  }
  return last == kNoKey ? 0 : static_cast<std::int32_t>(last & kIds);
}

// The first token with the largest logit. `found`: of the block.
GPU_FUNCTION std::int32_t pick_top(const Job& p, int row, const PackedPick& pick, const float* logits,
                                   float top, std::int32_t* found) {
  const PieceNumbers* const numbers = p.numbers + static_cast<std::int64_t>(row) * p.pieces;
  if (thread_index() == 0) *found = kNone;
  barrier();
  for (std::int32_t i = thread_index(); i < p.pieces; i += kSearchThreads) {
    if (numbers[i].top == top) atomic_least(found, i);
  }
  barrier();
  const std::int32_t begin = *found == kNone ? 0 : *found * kPiece;
  const std::int32_t end = begin + kPiece < pick.vocab ? begin + kPiece : pick.vocab;
  barrier();
  if (thread_index() == 0) *found = kNone;
  barrier();
  for (std::int32_t i = begin + thread_index(); i < end; i += kSearchThreads) {
    if (logits[i] == top) atomic_least(found, i);
  }
  barrier();
  return *found == kNone ? 0 : *found;  // 0: no logit is a number
}

GPU_FUNCTION void write_token(const Job& p, int row, const PackedPick& pick, std::int32_t token,
                              std::int32_t* bad) {
  const PieceNumbers* const numbers = p.numbers + static_cast<std::int64_t>(row) * p.pieces;
  if (thread_index() == 0) *bad = kNone;
  barrier();
  for (std::int32_t i = thread_index(); i < p.pieces; i += kSearchThreads) atomic_least(bad, numbers[i].bad);
  barrier();
  if (thread_index() != 0) return;
  PickedToken& out = p.out[row];
  out.token = token;
  out.logit = p.given(pick)[token];
  out.bad = *bad == kNone ? -1 : *bad;
  out.bad_logit = *bad == kNone ? 0 : p.given(pick)[*bad];
  out.unused = 0;
}

// The most probable tokens in order. `keys`: kMostProbable of the block.
GPU_FUNCTION void write_most_probable(const Job& p, int row, const PackedPick& pick, const Search& search,
                                      std::uint64_t* keys) {
  const float* const logits = p.given(pick);
  const int thread = thread_index();
  const std::int32_t most = pick.most_probable < pick.vocab ? pick.most_probable : pick.vocab;
  const Passed count{Passed::Of::count, most, 1, 0};
  const std::int32_t digit = search.first_digit(p.sums_of(row, kLogProbJob), count);
  Among among{logits, nullptr, 0, pick.vocab};
  std::uint64_t last = kNoKey;
  if (digit >= 0) {
    among = tokens_up_to(logits, pick.vocab, digit, false, search.list, search.count);
    last = find_key(search.memory, among, counting(), count, 1, static_cast<std::uint64_t>(digit));
  }
  std::int32_t* const found = search.memory.digit;
  barrier();
  if (thread == 0) *found = 0;
  barrier();
  for (std::int32_t i = thread; i < among.count; i += kSearchThreads) {
    const std::int32_t id = among.id(i);
    const std::uint64_t key = key_in(counting(), logits[id], id);
    if (key <= last && logits[id] == logits[id]) keys[atomic_add(found, 1)] = key;
  }
  barrier();
  if (thread >= *found) return;
  int place = 0;
  for (int i = 0; i < *found; ++i) place += keys[i] < keys[thread];
  const auto id = static_cast<std::int32_t>(keys[thread] & kIds);
  p.out[row].most_probable[place] = {id, logits[id]};
}

// Block (row, job).
GPU_KERNEL find_tokens(Job p) {
  GPU_SHARED(std::uint64_t, sums, kBins);
  GPU_SHARED(std::uint64_t, sums_of_warps, kSearchWarps);
  GPU_SHARED(std::uint64_t, left, 1);
  GPU_SHARED(std::int32_t, digit, 1);
  GPU_SHARED(std::int32_t, list, kListed);
  GPU_SHARED(std::int32_t, count, 1);
  GPU_SHARED(float, scratch, kSearchWarps);
  GPU_SHARED(std::uint64_t, keys, kMostProbable);
  const auto row = static_cast<int>(block_index());
  const int job = block_index_y(), thread = thread_index();
  const PackedPick& pick = p.picks[row];
  const Search search{{sums, sums_of_warps, left, digit}, list, count};
  const float top = top_of_row(p, row, job, scratch);
  PickedToken& out = p.out[row];
  const bool log_probs = pick.most_probable >= 0;
  if ((job == kLogProbJob) == log_probs) {  // the job that writes these
    if (thread < kMostProbable) out.most_probable[thread] = {0, 0};
    if (thread == 0) {
      out.top = log_probs ? top : 0;
      out.sum = log_probs ? p.log_sums[row] : 0;
    }
    barrier();
  }
  if (job == kLogProbJob) {
    if (pick.most_probable > 0) write_most_probable(p, row, pick, search, keys);
    return;
  }
  const float* const logits = p.of_job(pick, row, job);
  std::int32_t token = pick.given;
  if (pick.order == PickOrder::top)
    token = pick_top(p, row, pick, logits, top, count);
  else if (pick.order == PickOrder::by_id)
    token = pick_by_id(search, pick, logits, top, p.sums_of(row, job));
  else if (pick.order == PickOrder::by_rank)
    token = pick_by_rank(search, pick, logits, top, p.sums_of(row, job));
  barrier();
  write_token(p, row, pick, token, count);
}

}  // namespace

void pick_tokens(const PickTokensArgs& a) {
  CHECK(a.packed_there.defined() && a.packed_there.dtype() == DType::i32, "[pick_tokens] no packed picks");
  const auto picks = static_cast<std::int64_t>(a.picks.size());
  std::int64_t vocab = 0;
  bool log_probs = false, changes = false;
  for (const TokenPick& pick : a.picks) {
    CHECK(!pick.processed, "[pick_tokens] processed logits on a GPU");
    vocab = std::max(vocab, pick.vocab);
    log_probs = log_probs || pick.most_probable >= 0;
    changes =
        changes || !pick.bits.empty() || pick.config->uses_history() || !pick.config->logit_bias.empty();
  }
  const std::int64_t pieces = divide_up(vocab, kPiece), width = a.logits.dim(1);
  const auto bytes = [](std::int64_t count, std::size_t size) {
    return static_cast<std::size_t>(count) * size;
  };
  const Workspace changed(a.logits, changes ? bytes(picks * width, sizeof(float)) : 0),
      numbers(a.logits, bytes(picks * pieces, sizeof(PieceNumbers))),
      sums(a.logits, bytes(picks * (kJobs * kBins + 1), sizeof(std::uint64_t)));
  const auto* const packed = a.packed_there.device_data<std::int32_t>();
  auto* const all_sums = sums.data<std::uint64_t>();
  const Job job{.logits = a.logits.device_data<float>(),
                .width = width,
                .picks = reinterpret_cast<const PackedPick*>(packed),
                .lists = reinterpret_cast<const std::uint64_t*>(packed),
                .changed = changed.data<float>(),
                .numbers = numbers.data<PieceNumbers>(),
                .sums = all_sums,
                .log_sums = all_sums + picks * kJobs * kBins,
                .out = reinterpret_cast<PickedToken*>(a.out.device_data<std::int32_t>()),
                .pieces = static_cast<std::int32_t>(pieces)};
  const auto rows = static_cast<int>(picks);
  const int jobs = log_probs ? kJobs : 1;
  launch({.blocks = pieces, .threads = kThreads, .blocks_y = rows}, change_logits, job);
  launch({.blocks = pieces, .threads = kThreads, .blocks_y = rows, .blocks_z = jobs}, sum_weights, job);
  launch({.blocks = picks, .threads = kSearchThreads, .blocks_y = jobs}, find_tokens, job);
}

}  // namespace switchyard::gpu
