# GNU make. `make` alone lists the targets.
CC     ?= cc
CXX    ?= c++
CFLAGS ?= -O2
BUILD  ?= build
# Warnings are errors; `make WERROR=` for a compiler with unknown warnings.
WERROR ?= -Werror
WARN    = -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow $(WERROR)
# OpenMP if a program with it runs (musl has no library to run it with); `make OPENMP=` for one
# thread. Tried once, when first used.
OPENMP  = $(eval OPENMP := $(shell mkdir -p $(BUILD) && \
            echo 'int main(void) { return omp_get_max_threads() < 1; }' | \
            $(CC) -fopenmp -include omp.h -x c - -o $(BUILD)/openmp 2>/dev/null && \
            $(BUILD)/openmp 2>/dev/null && echo -fopenmp))$(OPENMP)
# -idirafter: stb headers put into build/stb, if the compiler finds none elsewhere.
FLAGS   = -std=c99 $(WARN) $(CFLAGS) $(OPENMP) -I. -idirafter build
COMPILE = $(CC) $(FLAGS)
MPICC  ?= mpicc
# Tests that also run as AArch64 programs, in an emulator: names without test_ and .c.
NEON_TESTS ?= io rng kernels
# ... as big-endian ones ..
S390X_TESTS ?= portable
# ... and as WebAssembly, under node.
WASM_TESTS ?= scalar_kernels simd128_rng simd128_ops simd128_kernels
WASM_CC    ?= clang --target=wasm32-wasi --sysroot=/usr

# Each of these .c files is a separate program, build/NAME.
programs = $(patsubst %.c,$(BUILD)/%,$(notdir $(wildcard $(1))))
EXAMPLES := $(filter-out %/mpi,$(call programs,examples/*.c))
TESTS    := $(call programs,tests/*/test_*.c)
TOOLS    := $(call programs,tools/*.c tools/cli/jem.c)
HEADERS  := jem.h $(wildcard examples/*.h tests/support/*.h tools/*/*.h)
LINKED   := $(HEADERS) $(BUILD)/support.a $(BUILD)/jem.o
CLI      := $(BUILD)/cli.a $(LINKED)
# Tests of a second or two come first, so that widespread failures appear at once.
QUICK    := $(addprefix $(BUILD)/test_,house rng tiny portable pictures batches models details)
AGAIN     = +@$(MAKE) --no-print-directory

# The longest first: two run side by side.
LESSONS  = glance mend_it score compose_images ways compose_nets learn break_it tiny_jem worlds film
LESSONS += samplers pooled vectors
LESSONS += compose three_densities own_net own_energy autograd
LESSONS += out_of_distribution calibration imputation
# pngquant does not support the animated film.png: its strip replaces it.
STILLS  = $(filter-out film,$(LESSONS)) film_strip samplers_traces attack_digits

.PHONY: FORCE help demo demo-long gallery examples tools windows mpi test tests check strict portability \
        fuzz graphs resume faults diverge mutate examine soak coverage covered sanitize sanitized \
        bench bench-torch bench-peers \
        bench-wasm check-torch check-bf16 seeds recipes debug stb playground site slides \
        grade clean

help:       ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo:       ## train on the digits, draw samples
demo-long:  ## the same, trained for longer
# passive: threads that spin while they wait halve the speed if another program runs
demo demo-long: $(BUILD)/demo
	OMP_WAIT_POLICY=passive $(BUILD)/demo $(if $(filter demo-long,$@),--long)

# With pngquant, if installed, the files are a third of the size: 256 colours are enough.
gallery: demo $(EXAMPLES)  ## run the examples and update their pictures in examples/gallery
	@cp build/pictures/dreams.png build/pictures/chains.png examples/gallery/
	$(AGAIN) -j2 $(LESSONS:%=gallery-%)
	@cp build/pictures/film_strip.png build/pictures/samplers_traces.png examples/gallery/
	$(BUILD)/attack examples/models/mnist.safetensors
	@cp build/pictures/attack.png examples/gallery/attack_digits.png
	$(BUILD)/films_energy
	$(BUILD)/films
	$(BUILD)/films_learn
	$(BUILD)/films_jem
	@cp build/pictures/films_*.png examples/gallery/
	@if command -v pngquant >/dev/null; then cd examples/gallery && \
	    pngquant --nofs --strip --force --ext .png $(STILLS:=.png); fi

.PHONY: $(LESSONS:%=gallery-%)
$(LESSONS:%=gallery-%): gallery-%:
	@echo "== $*"
	@rm -f build/pictures/$*.png
	@{ OMP_WAIT_POLICY=passive $(BUILD)/$* || touch $(BUILD)/$*.failed; } | \
	    while IFS= read -r line; do echo "$*: $$line"; done
	@! rm $(BUILD)/$*.failed 2>/dev/null || { echo "$* failed"; exit 1; }
	@cp build/pictures/$*.png examples/gallery/
	@echo "== $* is done"

examples: $(EXAMPLES)  ## build every example into build/
tools: $(TOOLS)        ## build every tool into build/
tests: $(TESTS)

# isfinite of MinGW converts to float.
WINDOWS_CC ?= x86_64-w64-mingw32-gcc
windows: stb  ## build/windows/jem.exe, by gcc of MinGW; on Windows: WINDOWS_CC=gcc
	$(AGAIN) BUILD=$(BUILD)/windows CC="$(WINDOWS_CC)" OPENMP=-fopenmp WARN="-Wall -Wextra $(WERROR)" \
	    CFLAGS="-O2 -DJEM_WINDOWS_SIMD -Wa,-muse-unaligned-vector-move" $(BUILD)/windows/jem.exe

mpi: stb    ## build/jem-mpi: `jem` on several machines (mpirun -n N build/jem-mpi train ..)
	@tools/get_package.sh mpi
	$(AGAIN) $(BUILD)/jem-mpi
$(BUILD)/jem-mpi: examples/mpi.c tools/cli/jem.c $(CLI)
	@rm -f $@
	OMPI_CC="$(CC)" MPICH_CC="$(CC)" $(MPICC) $(FLAGS) -DJEM_DECLARATIONS $< $(BUILD)/cli.a $(BUILD)/support.a \
	    $(BUILD)/jem.o -o $@ -lm

# A program that does not compile is one failed test of many: hence -k; run.sh checks for programs.
# If what they share does not compile, programs of an earlier build would run: run.sh reports that.
define SHARED
@mkdir -p $(BUILD)
@rm -f $(BUILD)/incomplete
$(AGAIN) $(BUILD)/jem.o $(BUILD)/cli.a $(BUILD)/support.a || touch $(BUILD)/incomplete
endef
test: stb   ## build and run every test; the last line is: N passed, N failed
	$(SHARED)
	$(AGAIN) -k tests examples tools || true
	$(AGAIN) $(BUILD)/libjem.so || true
	$(AGAIN) mpi || true
	@tests/run.sh $(EXAMPLES) $(TOOLS) $(QUICK) $(filter-out $(QUICK),$(TESTS)) \
		documents two_units sanitized python cmake cli uses \
		smoke mpi get_data report limits mutate lessons \
		with strict fuzz portability examine playground slides site grade windows s390x wasm neon

# Everything that this machine can run or emulate: emulated programs take hours.
EVERY = $(patsubst test_%,%,$(notdir $(TESTS)))
portability: stb  ## every compiler, standard, processor; PLATFORMS="compilers x86_32" for less
	@tools/get_package.sh cross
	@TEST_SECONDS=$${TEST_SECONDS:-3600} NEON_TESTS="$(EVERY)" S390X_TESTS="$(EVERY)" \
	    WASM_TESTS="$(WASM_TESTS) scalar_portable" tests/run.sh \
	    $(or $(PLATFORMS),musl clang exceptions folders compilers x86_32 processors strict \
	        neon s390x wasm)

# The most effective tests for their processor time: with several compilations of jem.h they take a
# minute or two on two idle cores.
CHECK = house defaults misuse details finite io calls own batches rng
CHECK_WITH = $(WARN) -DJEM_IMPLEMENTATION -fsyntax-only
check: stb  ## after an edit, in under two minutes: strict compilation, the quick tests
	$(CC) -std=c99 $(CHECK_WITH) -x c jem.h
	$(CXX) -std=c++11 $(CHECK_WITH) -x c++ jem.h
	$(SHARED)
	$(AGAIN) -k -j2 $(CHECK:%=$(BUILD)/test_%) || true
	@tests/run.sh $(CHECK:%=$(BUILD)/test_%)

strict:     ## compile jem.h alone: gcc and clang, C and C++, each macro, all warnings
	@tests/properties/strict.sh

# 600 is for releases: 80 minutes in total. TARGETS="gzip idx" for less.
SECONDS ?= 600
fuzz: stb   ## hostile files for every loader, SECONDS for each (600); findings: build/fuzz
	@tools/get_package.sh fuzzer
	@tests/properties/fuzz.sh $(SECONDS) $(TARGETS)

# SEED=5000 for others
graphs: $(BUILD)/test_graphs  ## compare random graphs of ops with PyTorch: GRAPHS=4000, some minutes
	@tests/run.sh graphs

resume: $(BUILD)/test_resume  ## 300 random training runs, interrupted and resumed
	OMP_WAIT_POLICY=passive $(BUILD)/test_resume 300 $(or $(SEED),100)

faults: $(BUILD)/test_faults  ## make every call that can fail do so: half an hour
	$(BUILD)/test_faults all

diverge: $(BUILD)/test_divergence $(BUILD)/test_guard  ## training that diverges: 110 runs, two long ones
	$(BUILD)/test_divergence all
	$(BUILD)/test_guard long

# MUTATE="--number 500 --seed 2 --room train --jobs 2"; python3 tests/mutate.py --help
mutate: stb ## change jem.h in one place, run the tests, 250 times; some hours
	python3 tests/mutate.py $(MUTATE)

examine:    ## static analysis, ThreadSanitizer, valgrind: PARTS="static threads leaks" for less
	@tools/get_package.sh examine
	@tests/properties/examine.sh $(or $(PARTS),static threads leaks)

soak:       ## train, save, load, sample in a loop; SECONDS=60 for less than an hour
	@SOAK=$(if $(filter file,$(origin SECONDS)),3600,$(SECONDS)) tests/properties/examine.sh soak

# Lines that ran in any program, for any instruction set: the list of the others is in $(BUILD).
coverage: stb  ## lines and branches of jem.h that the test programs run
	$(AGAIN) BUILD=build/coverage covered CFLAGS="-Og --coverage"
covered:
	$(SHARED)
	$(AGAIN) -k tests $(BUILD)/jem || true
	@rm -f $(BUILD)/*.gcda
	@TEST_SECONDS=$${TEST_SECONDS:-3600} tests/run.sh $(TESTS) cli uses
	@python3 tests/coverage.py $(BUILD) --least 95

sanitize: stb  ## the test programs under the address and undefined-behaviour sanitizers
	$(AGAIN) BUILD=build/sanitize sanitized CFLAGS="-O1 -g -fno-omit-frame-pointer \
	    -fsanitize=address,undefined -fno-sanitize-recover=all"
sanitized:
	$(SHARED)
	$(AGAIN) -k tests $(BUILD)/jem || true
	@TEST_SECONDS=$${TEST_SECONDS:-3600} tests/run.sh $(TESTS) cli uses report

bench: $(BUILD)/bench  ## GFLOP/s of every layer and pass, and times of the rest
	@echo 'jem.h compiled with $(CC) -O2: user and system time, size'
	@$(CC) -std=c99 -O2 -x c -DJEM_IMPLEMENTATION -c jem.h -o $(BUILD)/alone.o && \
	    times >$(BUILD)/alone.txt && sed -n 2p $(BUILD)/alone.txt && size $(BUILD)/alone.o
	$(BUILD)/bench --out $(BUILD)/bench.csv

bench-torch: $(BUILD)/bench_torch $(BUILD)/bench_chart  ## compare speed with PyTorch; NETS="wrn-16-2" for one
	@python=$$(tools/get_package.sh torch) && $$python tools/bench_torch.py

bench-peers: $(BUILD)/bench_torch $(BUILD)/jem  ## compare speed with onnxruntime and PyTorch
	@tools/get_package.sh onnxruntime
	@python=$$(tools/get_package.sh torch) && $$python tools/bench_peers.py

# Neither main nor an import, as pages require.
$(BUILD)/wasm/bench_%.wasm: tools/bench_wasm.c jem.h
	@mkdir -p $(@D)
	$(WASM_CC) -std=c99 $(WARN) -O2 $(if $(filter simd128,$*),-msimd128) -I. $< -o $@ -nostartfiles \
	    -Wl,--no-entry,--export=bench_room,--export=bench_open,--export=bench_step \
	    -lc-printscan-long-double -lm

bench-wasm: $(BUILD)/bench_wasm  ## SGLD in WebAssembly, under node and in Chromium, and natively
	@tools/get_package.sh wasm
	$(AGAIN) $(BUILD)/wasm/bench_scalar.wasm $(BUILD)/wasm/bench_simd128.wasm
	@tools/bench_wasm.sh

check-torch: $(BUILD)/check_torch  ## compare values with PyTorch; NETS="wrn-10-1 curve" for less
	@python=$$(tools/get_package.sh torch) && $$python tools/check_torch.py

# RUN="mnist --precision bf16" for `jem train` instead of the demo; SEEDS="1 2 3"
seeds: $(BUILD)/jem $(BUILD)/demo  ## train with several seeds, a line for each
	@tools/seeds.sh $(RUN)

recipes: $(BUILD)/jem      ## ablations of a recipe; RUN="mnist 60": a row per change, 60 s each
	@tools/recipes.sh $(RUN)

check-bf16: $(BUILD)/jem $(BUILD)/runs_chart  ## compare training in bf16 with fp32, three seeds of each
	@tools/check_bf16.sh

# One file for any browser: the ideas of the examples as interactive panels, computed by jem.h as
# WebAssembly. Another JEM for its digits: make playground PLAYGROUND_JEM=FILE
PLAYGROUND_JEM   ?= examples/models/mnist.safetensors
PLAYGROUND_PLAIN ?= examples/models/mnist-plain.safetensors
PAGE_C = $(wildcard examples/playground/*.c)
playground: $(BUILD)/playground.html  ## build/playground.html: draw, dream, break it, in a browser
	@ls -l $<
# page.c contains the implementation of jem.h, which takes longest to compile: a separate object.
PAGE_CC = $(WASM_CC) -msimd128 -O2 -std=c99 $(WARN) -I. -DJEM_NO_STDIO
PAGE_O  = $(PAGE_C:examples/playground/%.c=$(BUILD)/wasm/page_%.o)
$(BUILD)/wasm/page_%.o: examples/playground/%.c examples/playground/page.h examples/points.h \
        tools/support/measures.h jem.h
	@tools/get_package.sh wasm
	@mkdir -p $(@D)
	$(PAGE_CC) -c $< -o $@
$(BUILD)/playground.wasm: $(PAGE_O)
	$(PAGE_CC) $(PAGE_O) -o $@ -nostartfiles \
	    -Wl,--no-entry,--strip-all,--stack-first,-z,stack-size=262144 -lc-printscan-long-double -lm
# It draws digits, so it needs models of them.
$(BUILD)/playground.models: FORCE
	@mkdir -p $(@D)
	@for file in $(PLAYGROUND_JEM) $(PLAYGROUND_PLAIN); do \
	    for text in channels:1 height:28 width:28 classes:10; do \
	        head -c 100000 "$$file" | LC_ALL=C grep -aq "\"jem.$${text%:*}\":\"$${text#*:}\"" || { \
	            echo "$$file: the playground needs a model of 28 x 28 grey images, 10 classes" >&2; \
	            exit 1; }; \
	    done || exit 1; \
	done
	@echo '$(PLAYGROUND_JEM) $(PLAYGROUND_PLAIN)' | cmp -s - $@ || \
	    echo '$(PLAYGROUND_JEM) $(PLAYGROUND_PLAIN)' >$@
$(BUILD)/playground.html: $(BUILD)/playground.models $(BUILD)/playground.wasm \
        $(wildcard examples/playground/*) $(PLAYGROUND_JEM) $(PLAYGROUND_PLAIN)
	@examples/playground/build.sh examples/playground/page.html $(BUILD)/playground.wasm \
	    $(PLAYGROUND_JEM) $(PLAYGROUND_PLAIN) >$@.part && mv $@.part $@

# SITE_ADDRESS, as https://name.github.io/jem: where it will be, for the preview that is shown when
# an address is shared.
SITE_ADDRESS ?=
site: $(BUILD)/playground.html slides  ## build/site/: course, playground and pages, to publish
	@rm -rf $(BUILD)/site
	@python3 tools/make_site.py $(BUILD)/site $(BUILD)/playground.html \
	    $(BUILD)/slides.html $(SITE_ADDRESS)

slides:     ## build/slides.html: a lecture of 90 minutes, made of the lessons
	@mkdir -p $(BUILD)
	@python3 tools/make_slides.py $(BUILD)/slides.html

ANSWERS ?= examples/assignments
grade: $(BUILD)/jem.o  ## points for the assignments in examples/assignments, or ANSWERS=FOLDER
	@OPENMP="$(OPENMP)" tools/grade.sh "$(ANSWERS)"

debug:      ## everything for a debugger, into build/debug/
	$(AGAIN) BUILD=build/debug CFLAGS="-O0 -g" examples tools tests

stb:        ## install the stb headers if they are missing
	@tools/get_package.sh stb

clean:      ## remove build/
	rm -rf build

# Another compiler or other flags rebuild everything.
$(BUILD)/command: stb
	@mkdir -p $(@D)
	@echo '$(COMPILE)' | cmp -s - $@ || echo '$(COMPILE)' >$@

# The implementation is compiled once and linked to all programs that only use the API, as is shared
# code. (grep -s: a copy for students has no tests.)
INSIDE := $(shell grep -slE 'jem__|JEM__|->node' examples/*.c tests/*/*.c tools/*.c tools/cli/*.c)
$(BUILD)/jem.o: jem.h $(BUILD)/command
	$(COMPILE) -x c -DJEM_IMPLEMENTATION -c jem.h -o $@
SUPPORT := $(patsubst tools/support/%.c,$(BUILD)/support/%.o,$(wildcard tools/support/*.c))
$(BUILD)/support/%.o: tools/support/%.c $(wildcard tools/support/*.h) jem.h $(BUILD)/command
	@mkdir -p $(@D)
	$(COMPILE) -c $< -o $@
$(BUILD)/support.a: $(SUPPORT)
	@rm -f $@
	$(AR) -rcs $@ $^
PARTS := $(filter-out %/jem.o,$(patsubst tools/cli/%.c,$(BUILD)/cli/%.o,$(wildcard tools/cli/*.c)))
$(BUILD)/cli/%.o: tools/cli/%.c $(HEADERS) $(BUILD)/command
	@mkdir -p $(@D)
	$(COMPILE) -c $< -o $@
$(BUILD)/cli.a: $(PARTS)
	@rm -f $@
	$(AR) -rcs $@ $^
# For tools/jem.py.
$(BUILD)/libjem.so: jem.h $(BUILD)/command
	@rm -f $@
	$(COMPILE) -fPIC -shared -x c -DJEM_IMPLEMENTATION jem.h -o $@ -lm

# A failed compilation must not leave the old program: run.sh would run it.
define program
	@rm -f $@
	$(COMPILE) $(if $(filter $<,$(INSIDE)),$<,-DJEM_DECLARATIONS $<) $(filter %.a,$^) \
	    $(if $(filter $<,$(INSIDE)),,$(BUILD)/jem.o) -o $@ -lm
endef

$(BUILD)/%: examples/%.c $(LINKED)
	$(program)
$(BUILD)/%: tests/rooms/%.c $(HEADERS) $(BUILD)/jem.o
	$(program)
$(BUILD)/%: tests/properties/%.c $(HEADERS) $(BUILD)/jem.o
	$(program)
$(BUILD)/%: tests/tools/%.c $(HEADERS) $(BUILD)/jem.o
	$(program)
# Few tests need code that programs share; the others are built without stb.
SHARING := $(shell grep -slE '#include "(tools|examples)/' tests/*/test_*.c)
$(call programs,$(SHARING)): $(BUILD)/cli.a $(BUILD)/support.a
# These look inside.
$(BUILD)/test_faults $(BUILD)/test_batches $(BUILD)/test_divergence: $(wildcard tools/cli/*.c)
$(BUILD)/test_faults $(BUILD)/test_data $(BUILD)/test_lessons: $(wildcard tools/support/*.c)
$(BUILD)/test_tiny: examples/tiny_jem.c
$(BUILD)/test_own_tool: tools/cli/jem.c
$(BUILD)/test_lessons: examples/hello.c
$(BUILD)/test_answers: examples/samplers.c
$(BUILD)/test_amx: tests/rooms/test_kernels.c
$(BUILD)/test_soak: private FLAGS += -pthread
$(BUILD)/%: tools/%.c $(LINKED)
	$(program)
$(BUILD)/jem: tools/cli/jem.c $(CLI)
	$(program)
$(BUILD)/windows.o: tools/cli/windows.rc tools/cli/windows.manifest $(BUILD)/command
	$(patsubst %gcc,%windres,$(CC:%-posix=%)) $< -o $@
$(BUILD)/jem.exe: tools/cli/jem.c $(BUILD)/windows.o $(CLI)
	@rm -f $@
	$(COMPILE) $< $(BUILD)/windows.o $(BUILD)/cli.a $(BUILD)/support.a -static -o $@ -lm

export GRAPHS SEED
export CC CXX BUILD WARN NEON_TESTS S390X_TESTS WASM_TESTS WASM_CC
