// A text that somebody waits for: what is asked of it, and the way its pieces go from the rank that makes
// them to the connection that wants them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "generate/sampling.h"

namespace switchyard::serve {

struct TextRequest {
  std::vector<std::int32_t> prompt;  // one token or more
  std::int64_t most_tokens = 0;      // new ones; 0: the prompt alone is of interest
  SamplingConfig sampling = {};
  std::uint32_t seed = 0;               // draws depend on it, the choice and the number of tokens before
  std::size_t choice = 0;               // which of the texts that are asked for together
  std::vector<std::string> stop = {};   // the text ends before the first of these
  std::optional<int> log_probs = {};    // wanted, with those of so many most probable tokens
  bool ignore_end = false;              // of a document
  bool scores_prompt = false;           // log_probs are wanted of the prompt's tokens, too
  std::vector<std::int32_t> ends = {};  // ids that end the text, beside those that end every text
};

// `failed`: the model's logits are no numbers.
enum class Finish { stop, length, abandoned, failed };

struct TokenLogProb {
  std::string text;
  std::optional<double> log_prob;  // none: nothing is before the token
  std::vector<std::pair<std::string, double>> most_probable;
  std::int64_t offset;  // characters of the prompt, or of the new text, that are whole before the token
};

std::int64_t characters_in(const std::string& utf8);

// What is new of one text.
struct Piece {
  std::size_t choice = 0;
  std::string text;
  std::int64_t tokens = 0;
  std::vector<TokenLogProb> log_probs = {};  // where wanted
  std::optional<Finish> finish = {};
  bool of_prompt = false;    // the log probabilities are of its tokens
  std::string problem = {};  // of a text that failed, in one line
};

// The pieces of the texts that are asked for together; all functions may be called by any thread.
class Pieces {
 public:
  void add(Piece piece);
  // Those that have come; waits up to `seconds` for one.
  std::vector<Piece> take(double seconds);
  // Nobody wants more of them.
  void abandon();
  bool abandoned() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Piece> pieces_;
  bool abandoned_ = false;
};

struct WantedText {
  TextRequest request;
  std::shared_ptr<Pieces> pieces;
};

}  // namespace switchyard::serve
