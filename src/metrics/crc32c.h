// CRC-32C (Castagnoli polynomial, reflected 0x82F63B78), as RFC 3720 appendix B.4 defines it.
//
// A byte table is enough: a training step writes a few kilobytes of events. Checkpoints use xxHash.
#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard {

// CRC-32C of `bytes`; 0 for none.
std::uint32_t crc32c(std::string_view bytes);

// The form that TFRecord stores: rotated and offset, so that a CRC of data holding its own CRC stays useful.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace switchyard
