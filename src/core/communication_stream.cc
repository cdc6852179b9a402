#include "core/error.h"
#include "core/gpu.h"

namespace switchyard::gpu {
namespace {

thread_local bool on_communication_stream = false;

}  // namespace

OnCommunicationStream::OnCommunicationStream() {
  CHECK(!on_communication_stream, "scopes of the communication stream do not nest");
  on_communication_stream = true;
}

OnCommunicationStream::~OnCommunicationStream() {
  on_communication_stream = false;
}

bool OnCommunicationStream::is_on() {
  return on_communication_stream;
}

}  // namespace switchyard::gpu
