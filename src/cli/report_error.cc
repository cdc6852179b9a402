#include "cli/report_error.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "core/error.h"
#include "parallel/comm/processes.h"

namespace switchyard {
namespace {

int status_of(const Error& error) {
  return error.kind() == Error::Kind::usage ? 2 : 1;
}

}  // namespace

void print_error(std::string message) {
  for (char& letter : message) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) letter = ' ';
  }
  std::fprintf(stderr, "switchyard: %s\n", message.c_str());
}

int report_error() {
  try {
    throw;
  } catch (const Silent& error) {
    return status_of(error);
  } catch (const Error& error) {
    print_error(error.what());
    if (error.kind() == Error::Kind::internal) std::abort();  // for the core file
    return status_of(error);
  } catch (const std::bad_alloc&) {
    print_error("[memory] out of memory; make the model or the batch smaller");
    return 1;
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
}

}  // namespace switchyard
