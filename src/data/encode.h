// Encodes documents as token ids.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// Selects the special tokens placed around a document.
struct DocumentEnds {
  bool bos = true, eos = true;
};

// Encodes each text, with its ends, on all threads of the pool. Throws the tokenizer's errors.
std::vector<std::vector<std::int32_t>> encode_documents(std::span<const std::string> texts,
                                                        const Tokenizer& tokenizer, DocumentEnds ends,
                                                        ThreadPool& pool);

}  // namespace switchyard
