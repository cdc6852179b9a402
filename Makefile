# What people type. The build itself is CMakeLists.txt; this file only names its variants.
#
#   make            build build/release/switchyard        make test-asan  tests under ASan and UBSan
#   make test-quick the quick tests                       make install    to PREFIX (/usr/local)
#   make cuda       build/cuda/switchyard with a GPU's kernels (needs the CUDA toolkit, no GPU)
#   make train      install, build, train a small model   make test-tsan  tests under TSan
#   make deb        a Debian package, in build/release    make soak       long tests, then the fuzzers
#   make test       install, build, run all tests
#   make fuzz       libFuzzer targets, FUZZ_SECONDS each  make format     clang-format in place
#   make clean      remove build/                         make tidy       clang-tidy over src/
#   make wheel      the Python package, in dist/, tried   make wheel-cuda the same with a GPU's kernels
#
# Compilers' warnings are shown and end no build. SWITCHYARD_WARNINGS_AS_ERRORS=ON, as an argument or in the
# environment (.ci/run), makes them errors in the build folder until it is OFF.

RELEASE := build/release
CONFIG ?= configs/examples/small-moe.yml
FUZZ_SECONDS ?= 60
SANITIZER_FLAGS := -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g"
FUZZERS := $(patsubst tests/fuzz/%.cc,%,$(wildcard tests/fuzz/*_fuzz.cc))
CTEST := ctest --output-on-failure -j2
# TSan maps its shadow at fixed addresses, which kernels with much address randomisation may take.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

comma := ,

# $(call configure,folder,options): once, as CMake itself notices later changes, or whenever warnings are spoken of.
WARNINGS := $(addprefix -DSWITCHYARD_WARNINGS_AS_ERRORS=,$(SWITCHYARD_WARNINGS_AS_ERRORS))
define configure
	@{ test -z '$(WARNINGS)' && test -f $(1)/build.ninja; } || cmake -S . -B $(1) -G Ninja $(2) $(WARNINGS) >/dev/null
endef

# $(call build_release,targets): all of them without.
define build_release
	$(call configure,$(RELEASE),-DCMAKE_BUILD_TYPE=Release)
	@scripts/build_time.sh $(RELEASE) $(1)
	@cmake --build $(RELEASE) $(addprefix --target ,$(1))
endef

.PHONY: build cuda deb wheel wheel-cuda dependencies train test test-quick test-asan test-tsan soak fuzz install format tidy clean

build:
	$(call build_release)

cuda:
	$(call configure,build/cuda,-DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_CUDA=ON)
	@cmake --build build/cuda --target switchyard

dependencies:
	@scripts/install_dependencies.sh

train: dependencies
	$(call build_release,switchyard)
	$(RELEASE)/switchyard train $(CONFIG)

test: dependencies
	@$(MAKE) --no-print-directory build
	$(CTEST) --test-dir $(RELEASE)

# Under a minute, once built: the groups that CMakeLists.txt does not call slow.
test-quick: dependencies
	@$(MAKE) --no-print-directory build
	$(CTEST) --test-dir $(RELEASE) -LE slow

# Without detect_stack_use_after_return: its frames are not aligned for the 64-byte vectors of g++ 12 (GCC bug 110027).
test-asan: dependencies
	$(call configure,build/asan,$(SANITIZER_FLAGS) -DSWITCHYARD_SANITIZE=address$(comma)undefined)
	@cmake --build build/asan
	ASAN_OPTIONS=halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(CTEST) --test-dir build/asan

test-tsan: dependencies
	$(call configure,build/tsan,$(SANITIZER_FLAGS) -DSWITCHYARD_SANITIZE=thread)
	@cmake --build build/tsan
	TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" \
	  $(FIXED_ADDRESSES) $(CTEST) --test-dir build/tsan

# Property tests run fifty times as many rounds under SWITCHYARD_SOAK.
soak: dependencies
	@$(MAKE) --no-print-directory build
	SWITCHYARD_SOAK=1 $(CTEST) --test-dir $(RELEASE)
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=600

fuzz:
	@scripts/install_dependencies.sh --fuzz
	$(call configure,build/fuzz,$(SANITIZER_FLAGS) -DCMAKE_CXX_COMPILER=clang++ -DSWITCHYARD_FUZZ=ON \
	  -DSWITCHYARD_SANITIZE=address$(comma)undefined -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link)
	@cmake --build build/fuzz --target $(FUZZERS)
	@scripts/run_fuzzers.sh build/fuzz $(FUZZ_SECONDS)

PREFIX ?= /usr/local
install:
	$(call build_release,switchyard switchyard_shared)
	@cmake --install $(RELEASE) --prefix $(PREFIX)

deb:
	@scripts/install_dependencies.sh --deb
	$(call build_release,switchyard switchyard_shared)
	@cd $(RELEASE) && cpack -G DEB

# Arguments by WHEEL="--python python3.10 python3.13" (scripts/make_wheel.py --help).
wheel: dependencies
	@scripts/make_wheel.py $(WHEEL)

wheel-cuda: dependencies
	@scripts/make_wheel.py --cuda $(WHEEL)

format:
	@scripts/install_dependencies.sh --dev
	@find src tests bench python -name '*.cc' -o -name '*.h' 2>/dev/null | xargs -r clang-format -i

tidy:
	@scripts/install_dependencies.sh --dev
	$(call configure,$(RELEASE),-DCMAKE_BUILD_TYPE=Release)
	@cmake --build $(RELEASE)
	@find src -name '*.cc' | xargs -r -n 1 -P 2 clang-tidy --quiet -p $(RELEASE)

clean:
	rm -rf build
