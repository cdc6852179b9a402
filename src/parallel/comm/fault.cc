#include "parallel/comm/fault.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::array<std::pair<std::string_view, Fault::Kind>, 8> kKinds{
    {{"kill", Fault::Kind::kill},
     {"stop", Fault::Kind::stop},
     {"exception", Fault::Kind::exception},
     {"check", Fault::Kind::check},
     {"mismatch", Fault::Kind::mismatch},
     {"sleep", Fault::Kind::sleep},
     {"nan", Fault::Kind::nan},
     {"flip", Fault::Kind::flip}}};
constexpr std::array<std::string_view, 5> kPhases{"forward", "dispatch", "backward", "gradients",
                                                  "optimizer"};

[[noreturn]] void fail_at(const std::string& item) {
  fail_usage(
      "[comm] SWITCHYARD_FAULT: expected "
      "kind=kill|stop|exception|check|mismatch|sleep|nan|flip,rank=R,step=S,"
      "phase=forward|dispatch|backward|gradients|optimizer[,calls_before=N][,steps=N], got '{}'",
      item);
}

std::int64_t number(const std::string& item, std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) fail_at(item);
  return value;
}

void set(Fault& fault, const std::string& item) {
  const std::size_t equals = item.find('=');
  if (equals == std::string::npos) fail_at(item);
  const std::string key = item.substr(0, equals), value = item.substr(equals + 1);
  bool known = false;
  if (key == "kind") {
    for (const auto& [name, kind] : kKinds) {
      if (name != value) continue;
      fault.kind = kind;
      known = true;
    }
  } else if (key == "phase") {
    for (const std::string_view phase : kPhases) known = known || phase == value;
    fault.phase = value;
  } else {
    known = key == "rank" || key == "step" || key == "calls_before" || key == "steps";
    if (key == "rank") fault.rank = static_cast<int>(number(item, value));
    if (key == "step") fault.step = number(item, value);
    if (key == "calls_before") fault.calls_before = number(item, value);
    if (key == "steps") fault.steps = number(item, value);
  }
  if (!known) fail_at(item);
}

// Makes a fault of any kind but mismatch and the numeric ones happen to the calling rank.
void happen(const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::kill:
      ::raise(SIGKILL);
      break;
    case Fault::Kind::stop:
      // To the process, as a terminal or another user would do it.
      ::kill(::getpid(), SIGSTOP);
      break;
    case Fault::Kind::exception:
      fail_runtime("[comm] SWITCHYARD_FAULT asked for this exception");
    case Fault::Kind::check:
      CHECK(false, "SWITCHYARD_FAULT asked for this");
      break;
    case Fault::Kind::sleep:
      std::this_thread::sleep_for(std::chrono::hours(24));
      break;
    case Fault::Kind::mismatch:
    case Fault::Kind::nan:
    case Fault::Kind::flip:
      break;
  }
}

}  // namespace

std::optional<Fault> fault_from_environment() {
  const char* text = std::getenv("SWITCHYARD_FAULT");
  if (text == nullptr || *text == '\0') return std::nullopt;
  Fault fault;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) set(fault, item);
  if (fault.phase.empty()) fail_at(text);
  return fault;
}

bool is_numeric(Fault::Kind kind) {
  return kind == Fault::Kind::nan || kind == Fault::Kind::flip;
}

bool suffers(const std::optional<Fault>& fault, const Position& position, Fault::Kind kind,
             std::string_view phase) {
  return fault && fault->kind == kind && fault->phase == phase && position.step >= fault->step &&
         position.step < fault->step + fault->steps;
}

double FaultyBackend::carry_out(const ProcessGroup& group, const CollectiveCall& call,
                                const Operands& operands) {
  return CommDecorator::carry_out(group, suffer(call), operands);
}

void FaultyBackend::start(const std::shared_ptr<StartedCollective>& started) {
  started->call = suffer(started->call);
  CommDecorator::start(started);
}

CollectiveCall FaultyBackend::suffer(CollectiveCall call) {
  if (!fault_ || call.kind == Collective::make_together) return call;
  if (position().step != fault_->step || fault_->phase != position().phase.load()) return call;
  if (fault_->calls_before-- > 0) return call;
  const Fault fault = *fault_;
  fault_.reset();
  if (fault.kind == Fault::Kind::mismatch)
    call.kind = call.kind == Collective::barrier ? Collective::broadcast : Collective::barrier;
  else
    happen(fault);
  return call;
}

}  // namespace switchyard
