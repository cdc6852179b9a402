#include "texts/sampler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/testing.h"
#include "texts/batcher.h"

namespace switchyard::texts {
namespace {

const std::vector<std::int32_t> kPrompt{'a', 'b'};

// A text of kPrompt in slot 0 whose prompt is read up to its last token, and what its client gets.
class OneText {
 public:
  explicit OneText(const TextRequest& request, const Limits& limits = {.vocab = kTokens})
      : sampler_(tokenizer_.get(), limits), pieces_(std::make_shared<Pieces>()) {
    texts_.push_back(std::make_unique<RunningText>(WantedText{request, pieces_}, tokenizer_.get(), 1, 1));
  }
  // Accepts a step whose logits make these tokens the most probable ones.
  Accepted accept(const Step& step, const std::vector<std::int32_t>& tokens) {
    const auto count = std::ssize(tokens);
    Tensor logits = Tensor::zeros(DType::f32, {count, kTokens});
    for (std::int64_t i = 0; i < count; ++i)
      logits.span<float>()[static_cast<std::size_t>(i * kTokens + tokens[static_cast<std::size_t>(i)])] = 9;
    return sampler_.accept_logits(pool_, step, texts_,
                                  step.wants_each() ? logits.reshaped({1, count, kTokens}) : logits);
  }
  Accepted read_prompt(std::int32_t next) { return accept({.fed = {{0, {'b'}}}}, {next}); }
  std::optional<Finish> finish() const { return sampler_.finish_of(*texts_[0]); }
  RunningText& text() { return *texts_[0]; }
  std::vector<Piece> take() { return pieces_->take(0); }
  std::string given() {
    std::string all;
    for (const Piece& piece : take()) all += piece.text;
    return all + Sampler::last_piece(text(), Finish::length).text;
  }

 private:
  static constexpr std::int64_t kTokens = 257;
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("byte", "");
  Sampler sampler_;
  std::shared_ptr<Pieces> pieces_;
  RunningTexts texts_;
  ThreadPool pool_{1};
};

TEST(Sampler, EndsAtAWordAnEndOrALength) {
  OneText word({.prompt = kPrompt, .most_tokens = 5, .stop = {"xy"}});
  word.read_prompt('x');
  EXPECT_FALSE(word.finish());
  word.accept({.fed = {{0, {'x'}}}}, {'y'});
  EXPECT_EQ(word.finish(), Finish::stop);
  EXPECT_EQ(word.given(), "");

  OneText own_end({.prompt = kPrompt, .most_tokens = 5, .ignore_end = true, .ends = {'e'}});
  own_end.read_prompt('e');
  EXPECT_EQ(own_end.finish(), Finish::stop);
  EXPECT_EQ(own_end.given(), "");

  for (const bool ignores : {false, true}) {
    OneText end({.prompt = kPrompt, .most_tokens = 2, .ignore_end = ignores}, {.vocab = 257, .ends = {'e'}});
    end.read_prompt('e');
    EXPECT_EQ(end.finish(), ignores ? std::nullopt : std::optional(Finish::stop));
    end.accept({.fed = {{0, {'e'}}}}, {'f'});
    EXPECT_EQ(end.finish(), Finish::length);
    EXPECT_EQ(end.given(), "ef");
  }
}

// A chat's client gets the token that ended its answer apart from those with a text.
TEST(Sampler, TellsTheEndOfAnAnswerApart) {
  OneText chat({.prompt = kPrompt, .most_tokens = 5, .answer = std::make_shared<AnswerForm>()},
               {.vocab = 257, .ends = {'e'}});
  chat.read_prompt('x');
  chat.accept({.fed = {{0, {'x'}}}}, {'e'});
  const std::vector<Piece> pieces = chat.take();
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].made, std::vector<std::int32_t>{'x'});
  EXPECT_FALSE(pieces[0].end);
  EXPECT_TRUE(pieces[1].made.empty());
  EXPECT_EQ(pieces[1].end, 'e');
}

// The model's own tokens decide: an accepted draft gives a second token, a rejected one leaves the cache.
TEST(Sampler, AcceptsDraftsThatTheModelPicks) {
  OneText text({.prompt = kPrompt, .most_tokens = 9}, {.drafts = 1, .vocab = 257});
  const Accepted first = text.read_prompt('c');
  ASSERT_EQ(first.next.size(), 1u);
  EXPECT_EQ(first.next[0].tokens, (std::vector<std::int32_t>{'c'}));
  EXPECT_EQ(first.kept, (std::vector<std::size_t>{1}));
  EXPECT_EQ(first.drafts, 0);

  text.text().progress.drafts = {'d'};
  const Accepted right = text.accept({.fed = {{0, {'c', 'd'}}}, .drafted = true}, {'d', 'e'});
  EXPECT_EQ(right.new_tokens, 2);
  EXPECT_EQ(right.accepted_drafts, 1);
  EXPECT_EQ(right.kept, (std::vector<std::size_t>{2}));
  EXPECT_EQ(right.next[0].tokens, (std::vector<std::int32_t>{'d', 'e'}));

  text.text().progress.drafts = {'x'};
  const Accepted wrong = text.accept({.fed = {{0, {'e', 'x'}}}, .drafted = true}, {'f', 'g'});
  EXPECT_EQ(wrong.new_tokens, 1);
  EXPECT_EQ(wrong.drafts, 1);
  EXPECT_EQ(wrong.accepted_drafts, 0);
  EXPECT_EQ(wrong.kept, (std::vector<std::size_t>{1}));
  EXPECT_EQ(wrong.next[0].tokens, (std::vector<std::int32_t>{'f'}));
  EXPECT_EQ(text.given(), "cdef");
}

// Three tokens: a letter, the letter after a space, and the letter's byte. The most probable of two with one
// text is named by the text; the space counts.
TEST(Sampler, TellsTokensOfOneTextApart) {
  const auto tokenizer =
      make_tokenizer("gguf", std::string(kSourceFolder) + "/tests/golden/gguf_tokenizers/pieces.gguf");
  constexpr std::int32_t kByte = 3 + 'a', kPiece = 260, kPieceOfWord = 266;
  const std::int64_t vocab = tokenizer->vocab_size();
  const Limits limits{.slots = 1, .waiting = 1, .vocab = vocab};
  Inbox inbox(limits);
  Batcher batcher(tokenizer.get(), limits, inbox);
  const auto pieces = std::make_shared<Pieces>();
  TextRequest text;
  text.prompt = {1};
  text.most_tokens = 1;
  text.sampling.strategy = SamplingStrategy::greedy;
  text.log_probs = 3;
  ASSERT_EQ(inbox.submit({{text, pieces}}), Inbox::Submitted::yes);
  const Step step = batcher.next(1).step;
  Tensor logits = Tensor::zeros(DType::f32, {1, vocab});
  logits.span<float>()[kPiece] = 9;
  logits.span<float>()[kPieceOfWord] = 8;
  logits.span<float>()[kByte] = 7;
  ThreadPool pool(1);
  batcher.accept_logits(pool, step, logits, 0);
  const std::vector<Piece> made = pieces->take(1);
  ASSERT_FALSE(made.empty());
  ASSERT_EQ(made[0].log_probs.size(), 1u);
  const TokenLogProb& token = made[0].log_probs[0];
  EXPECT_EQ(token.text, "a");
  ASSERT_EQ(token.most_probable.size(), 3u);
  EXPECT_EQ(token.most_probable[0], std::pair(std::string("a"), *token.log_prob));
  EXPECT_EQ(token.most_probable[1].first, " a");
  EXPECT_EQ(token.most_probable[2].first, fmt::format("token_id:{}", kByte));
}

}  // namespace
}  // namespace switchyard::texts
