#include "cli/program.h"

int main(int argc, char** argv) {
  return switchyard::run_program(argc, argv);
}
