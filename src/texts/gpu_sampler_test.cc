// Clients get the same from logits in an emulated GPU as from logits on the host.
#include <gtest/gtest.h>

#include <limits>

#include "core/rng.h"
#include "texts/batcher.h"

namespace switchyard::texts {
namespace {

constexpr std::int64_t kTokens = 257, kLogits = 260;  // of the tokenizer, of the model
constexpr std::int64_t kSteps = 6;

std::vector<TextRequest> requests() {
  using enum SamplingStrategy;
  std::vector<TextRequest> all(6, {.prompt = {'a', 'b'}, .most_tokens = kSteps, .seed = 9});
  all[1].sampling = {weighted, 0.8};
  all[1].log_probs = 0;
  all[2].sampling = {nucleus, 1.2, 0.9, 0, 0, 1.3, 0.5, 0.25, {{'x', 4}}};
  all[2].log_probs = 5;
  all[3].sampling = {topk, 1, -1, 40};
  all[3].ends = {'q', 'r', 's'};
  all[3].least_tokens = 4;
  all[3].log_probs = 20;
  all[4].sampling = {composite, 0.7, 0.8, 30, 0.01};
  all[4].log_probs = 20;
  all[4].processed_log_probs = true;
  all[5].sampling = {topk, 1, -1, 2};  // all but the ends have no chance
  all[5].ends = {'q', 'r'};
  all[5].least_tokens = 2;
  all[5].sampling.logit_bias = {{'q', 100}, {'r', 100}};
  for (std::size_t i = 0; i < all.size(); ++i) all[i].choice = i;
  return all;
}

Tensor random_logits(std::int64_t rows, std::int64_t step) {
  Tensor logits(DType::f32, {rows, kLogits});
  std::uint64_t at = 0;
  for (float& logit : logits.span<float>())
    logit = 12 * rng_uniform(rng_key(static_cast<std::uint32_t>(step)), at++);
  return logits;
}

// The texts of requests whose prompts are read up to their last token, step by step.
class Texts {
 public:
  explicit Texts(const Memory& memory) : memory_(memory) {
    for (const TextRequest& request : requests()) {
      pieces_.push_back(std::make_shared<Pieces>());
      texts_.push_back(
          std::make_unique<RunningText>(WantedText{request, pieces_.back()}, tokenizer_.get(), 1, 1));
    }
  }
  Accepted accept(const Tensor& logits, const Step& step) {
    return sampler_.accept_logits(pool_, step, texts_, to_device(memory_, logits));
  }
  std::vector<std::int32_t> drafts(const Tensor& logits, std::span<const SlotTokens> next) {
    sampler_.accept_drafts(pool_, next, texts_, to_device(memory_, logits));
    std::vector<std::int32_t> drafts;
    for (const auto& text : texts_) drafts.push_back(text->progress.drafts.back());
    return drafts;
  }
  std::vector<Piece> take(std::size_t text) { return pieces_[text]->take(0); }
  const RunningText& text(std::size_t i) const { return *texts_[i]; }
  std::size_t count() const { return texts_.size(); }

 private:
  Memory memory_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("byte", "");
  Sampler sampler_{tokenizer_.get(), {.vocab = kTokens}};
  RunningTexts texts_;
  std::vector<std::shared_ptr<Pieces>> pieces_;
  ThreadPool pool_{2};
};

// Returns how many tokens' log probabilities were compared.
std::int64_t expect_same(Texts& here, Texts& there) {
  std::int64_t compared = 0;
  for (std::size_t i = 0; i < here.count(); ++i) {
    const std::vector<Piece> want = here.take(i), got = there.take(i);
    EXPECT_EQ(there.text(i).progress.last_token, here.text(i).progress.last_token) << i;
    EXPECT_EQ(there.text(i).problem, here.text(i).problem) << i;
    EXPECT_EQ(got.size(), want.size());
    for (std::size_t n = 0; n < std::min(want.size(), got.size()); ++n) {
      EXPECT_EQ(got[n].text, want[n].text);
      EXPECT_EQ(got[n].log_probs.size(), want[n].log_probs.size());
      for (std::size_t t = 0; t < std::min(got[n].log_probs.size(), want[n].log_probs.size()); ++t) {
        const TokenLogProb &x = got[n].log_probs[t], &y = want[n].log_probs[t];
        EXPECT_EQ(x.token, y.token);
        EXPECT_EQ(x.text, y.text);
        EXPECT_EQ(x.log_prob, y.log_prob);
        EXPECT_EQ(x.most_probable, y.most_probable);
        EXPECT_EQ(x.most_probable_tokens, y.most_probable_tokens);
        ++compared;
      }
    }
  }
  return compared;
}

TEST(GpuSampler, GivesClientsWhatTheHostDoes) {
  Texts here{Memory()}, there{Memory(Device::cuda_emulated(), nullptr)};
  std::int64_t compared = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<SlotTokens> fed;
    for (std::size_t i = 0; i < here.count(); ++i) {
      const auto& progress = here.text(i).progress;
      fed.push_back({i, {step == 0 ? 'b' : progress.last_token}});
    }
    const Tensor logits = random_logits(std::ssize(fed), step);
    EXPECT_EQ(here.accept(logits.clone(), {.fed = fed}).new_tokens, std::ssize(fed));
    EXPECT_EQ(there.accept(logits, {.fed = fed}).new_tokens, std::ssize(fed));
    compared += expect_same(here, there);
    if (step < 2) {  // ends that come too early
      EXPECT_NE(there.text(5).progress.last_token, 'q');
      EXPECT_NE(there.text(5).progress.last_token, 'r');
    }
    EXPECT_EQ(there.drafts(logits, fed), here.drafts(logits, fed));
  }
  EXPECT_EQ(compared, 4 * kSteps);
}

TEST(GpuSampler, TellsOfLogitsThatAreNoNumbers) {
  Texts here{Memory()}, there{Memory(Device::cuda_emulated(), nullptr)};
  std::vector<SlotTokens> fed;
  for (std::size_t i = 0; i < here.count(); ++i) fed.push_back({i, {'b'}});
  const Tensor logits = random_logits(std::ssize(fed), 1);
  logits.span<float>()[kLogits + 77] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(here.accept(logits.clone(), {.fed = fed}).new_tokens, std::ssize(fed) - 1);
  EXPECT_EQ(there.accept(logits, {.fed = fed}).new_tokens, std::ssize(fed) - 1);
  expect_same(here, there);
  EXPECT_EQ(there.text(1).problem,
            "the model's logits after 2 tokens are no numbers: that of token 77 is nan");
}

// The tokens of prompts are scored over the whole vocabulary of the model.
TEST(GpuSampler, ScoresPromptsAsTheHostDoes) {
  std::int64_t compared = 0;
  const auto scored = [&](const Memory& memory) {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("byte", "");
    const Sampler sampler(tokenizer.get(), {.vocab = kTokens});
    const auto pieces = std::make_shared<Pieces>();
    RunningTexts texts;
    const TextRequest request{.prompt = {'a', 'b', 'c'}, .log_probs = 3, .scores_prompt = true};
    texts.push_back(std::make_unique<RunningText>(WantedText{request, pieces}, tokenizer.get(), 1, 0));
    ThreadPool pool(1);
    const Step step{.fed = {{0, {'a', 'b', 'c'}}}, .scored = true};
    const Tensor logits = random_logits(3, 4).reshaped({1, 3, kLogits});
    sampler.accept_logits(pool, step, texts, to_device(memory, logits));
    std::vector<std::pair<std::optional<double>, std::vector<std::int32_t>>> scores;
    for (const Piece& piece : pieces->take(0)) {
      for (const TokenLogProb& token : piece.log_probs)
        scores.emplace_back(token.log_prob, token.most_probable_tokens);
    }
    compared += std::ssize(scores);
    return scores;
  };
  EXPECT_EQ(scored(Memory(Device::cuda_emulated(), nullptr)), scored(Memory()));
  EXPECT_EQ(compared, 6);
}

}  // namespace
}  // namespace switchyard::texts
