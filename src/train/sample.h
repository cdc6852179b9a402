// Text from the model being trained.
#pragma once

#include <string>

#include "tokenizer/tokenizer.h"
#include "train/trainer.h"

namespace switchyard {

// Goes on from `prompt` for `count` tokens by temperature sampling, the whole window evaluated for every
// token. Collective; every rank gets the same text. Draws depend on the seed and the position only.
std::string sample_text(Trainer& trainer, const Tokenizer& tokenizer, const std::string& prompt,
                        std::int64_t count, std::int64_t window, double temperature, std::uint32_t seed);

}  // namespace switchyard
