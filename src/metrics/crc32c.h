// CRC-32C (Castagnoli polynomial, reflected 0x82F63B78), as RFC 3720 appendix B.4 defines it.
//
// A byte table is enough: a training step writes a few kilobytes of events. Checkpoints use xxHash.
#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard {

// CRC-32C of `bytes`; 0 for no bytes.
std::uint32_t crc32c(std::string_view bytes);

// The masked form of TFRecord: rotated and offset, so that CRCs of data that holds its CRC stay useful.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace switchyard
