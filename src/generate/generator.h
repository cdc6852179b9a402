// Generator: a model that goes on from tokens, one call after another, on one rank of a session. What it
// returns is the same on every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/decoder.h"
#include "routing/routing_blocks.h"

namespace switchyard {

// Tokens that a row goes on with, at least one.
struct RowTokens {
  std::size_t row;
  std::vector<std::int32_t> tokens;
};

class Generator {
 public:
  // With memory of `rows` texts, each of `capacity` tokens at most. Where the mesh splits a batch, it splits
  // these rows, in order. The context and the parameters must outlive it. Layers with windows or chunks
  // forget what no token to come sees, and need no memory for it, unless rows are to begin with any part of
  // others.
  Generator(Context& context, const ModelConfig& model, const Parameters& parameters, std::int64_t rows,
            std::int64_t capacity, bool forgets = true);

  // Feeds some rows, each at most once, their tokens, after those they were fed before. Logits of each one's
  // next token, f32 [rows fed,V], in the order of `fed`. The other rows cost nothing, but for padding where
  // parts of a split batch have unlike numbers of them. CHECKs that no row gets more than the capacity.
  Tensor feed(std::span<const RowTokens> fed);
  // The same with logits of what follows each token: f32 [rows fed,S,V], S being the most tokens of a row.
  Tensor feed_each(std::span<const RowTokens> fed);
  // Of a model with prediction layers, after a call of the two above: logits of a guess of the token after
  // next, by the first of those layers, f32 [rows fed,V]. `next` are the rows of that call, in its order,
  // each with the tokens that follow on its first tokens, one or more; what it was fed beyond is to be cut().
  Tensor draft(std::span<const RowTokens> next);
  // The row keeps its first `tokens` tokens: all that it has or all but the last (TokenRoom::kTakenBack), and
  // not fewer than it was given drafts of.
  void cut(std::size_t row, std::int64_t tokens);
  // The row begins anew with the first `tokens` tokens of a row, which may be itself and which still
  // remembers enough of them: can_begin(). Rows of unlike parts of a split batch share nothing (CHECK).
  void begin(std::size_t row, std::size_t from, std::int64_t tokens);
  // Whether a row can begin with the first `tokens` tokens of the row `from`. With none, always. Else a gated
  // delta net remembers whole texts only, and layers with windows or chunks forget what no token to come
  // sees: the token after those must not see it.
  bool can_begin(std::size_t from, std::int64_t tokens) const;
  void forget(std::size_t row) { begin(row, row, 0); }
  // Collective. Returns the first layer whose output is not finite, for a text whose logits are no numbers:
  // -1 is the embedding, the number of layers is what comes after the last one. The call reads the tokens
  // again and overwrites the row's cache.
  std::int64_t first_broken_layer(const RowTokens& text);

  // Before the first call, on all ranks: the experts of every token that a row remembers are kept, those of
  // drafts that were cut() left out, those of a row that another began from taken along.
  void record_routing();
  // Those of the first `tokens` tokens of a row, [L,S,K] of the layers of routed_layers(). On rank 0.
  std::vector<std::uint16_t> routing(std::size_t row, std::int64_t tokens) const;

  ThreadPool& pool() const { return *context_.pool; }
  std::int64_t rows() const { return std::ssize(rows_.lengths); }
  std::int64_t layers() const { return model_.layers; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length(std::size_t row) const { return rows_.lengths[row]; }
  // Into how many parts the mesh splits the rows, in order.
  std::int64_t parts() const { return parts_; }
  // Of the last call: this rank's part of the rows each expert got, a MoE layer of its stage after the other.
  const std::vector<LayerLoad>& loads() const { return loads_; }

 private:
  // Where in the batch of a call each of its rows stands.
  struct Places {
    std::int64_t batch;
    std::vector<std::int64_t> fed;    // of each row fed
    std::vector<std::int64_t> owner;  // of each row of the batch: the row of the generator, or -1
  };
  Places places_of(std::span<const RowTokens> fed) const;
  Batch batch_of(std::span<const RowTokens> fed, const Places& places, std::size_t least) const;
  // Calls the model, or with draft_of its prediction layer, for rows with tokens before as `rows_` says.
  // Logits as above.
  Tensor run(std::span<const RowTokens> fed, ForwardOptions options);
  // Tokens of rows, as the model or its prediction layer knows them.
  struct Rows {
    TokenRoom room;                     // of a row in layers with windows or chunks, if there are some
    std::vector<std::int64_t> lengths;  // of the rows
    std::vector<std::int64_t> firsts;   // of the rows: the first token that such layers remember

    bool can_cut(std::size_t row, std::int64_t tokens) const {
      return tokens <= lengths[row] && room.can_cut(firsts[row], tokens);
    }
    void cut(std::size_t row, std::size_t from, std::int64_t tokens) {
      firsts[row] = tokens == 0 ? 0 : firsts[from];
      lengths[row] = tokens;
    }
    void add(std::size_t row, std::int64_t tokens) {
      firsts[row] = room.begins(firsts[row], lengths[row], tokens).after;
      lengths[row] += tokens;
    }
  };
  void remember_rows(std::span<AttentionCache> caches, std::size_t row, std::size_t from,
                     std::int64_t tokens);
  void choose_rows(std::span<const RowTokens> fed, const Places& places);
  void count_broken(const ForwardResult& out, const Stage::Block& block);
  // After a call with a batch of [rows, length] tokens. Collective.
  void keep_routing(std::span<const RowTokens> fed, const Places& places, std::int64_t length);

  Context& context_;
  ModelConfig model_;
  const Parameters& parameters_;
  std::int64_t capacity_;
  Rows rows_;                    // of the model, on all ranks
  Rows drafted_;                 // of the prediction layer
  Array trunk_;                  // of the last call, where there is such a layer
  std::int64_t parts_ = 1;       // into which the mesh splits the rows
  std::int64_t first_here_ = 0;  // of this rank's rows
  AttentionCaches caches_;
  std::vector<LayerLoad> loads_;
  std::vector<double> broken_;                      // where looked for: values of each output, not finite
  std::optional<RoutingBlocks> routing_;            // of the running call, where experts are recorded
  std::vector<std::vector<std::uint16_t>> routed_;  // of the rows, on rank 0: [S,L,K] of their tokens
};

}  // namespace switchyard
