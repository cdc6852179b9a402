// AMX on machines without it, so that what AMX runs, to the instruction, can be tested there: the processor
// refuses its instructions, and the signal handler does what they would have done. Slow (a microsecond or two
// an instruction), for tests alone.
#pragma once

namespace switchyard::cpu {

// From now on this process has AMX's instructions for bf16. False, with nothing done, where the machine lacks
// AVX-512, which the emulation uses, or the system is not Linux on x86-64. To be called once.
bool emulate_amx();

// For whoever handles SIGILL as well: executes AMX's instructions where the signal came from, given its
// ucontext_t. False when there are none, or none that AMX would execute.
bool emulate_amx_at(void* context);

}  // namespace switchyard::cpu
