# shardkit: tools for 3D-parallel checkpoints
#
# Targets   all (default: every tool into bin/), lib (libshardkit.so, for C and Python), deps, deps-check (what tests can
#           use beyond libraries: Slurm, rclone, clang, a browser), test (minutes), check (what takes longer), soak (hours), bench, demo, fuzz, lint,
#           tidy (lays sources out), install, uninstall, deb (packages), static, release, check-release (programs
#           without shared libraries: ops/packaging/static.mk), html (documents as pages), man (its OPTIONS from the
#           tools), clean, help
# Knobs     B=release|debug|tsan   build flavour (debug: ASan + UBSan); objects in build/$(B)/
#           CC=gcc|clang           compiler          V=1  show commands
#           T='pt*'                which tests       PREFIX= DESTDIR= LIBDIR=  where install goes
#           CUDA=0                 leave CUDA alone even when nvcc is found
#           CUDA_HOME= CUDA_ARCH= CUDA_RPATH=  where it is; nvcc's -gencode options; where its library looks for cuBLAS

B       ?= release
V       ?= 0
PREFIX  ?= /usr/local
DESTDIR ?=
LIBDIR  ?= $(PREFIX)/lib
T       ?= *
CUDA    ?= 1
CUDA_HOME ?= /usr/local/cuda
# Machine code for Hopper and for the A100; the PTX is for the driver of any other GPU since the A100 (Ada, Blackwell).
CUDA_ARCH ?= -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=sm_80 \
             -gencode arch=compute_80,code=compute_80
# Where shardkit-cuda.so looks for cuBLAS first; nothing: only where the dynamic linker does.
CUDA_RPATH ?= $(CUDA_HOME)/lib64

VERSION := $(shell cat VERSION)
# The commit that --version names. Only packages and releases set it: each new value links all programs again.
COMMIT  ?=
TOOLS   := shardkit ckpt-inspect ckpt-backup ckpt-edit ds2universal reshape merge-tp export-hf preprocess train run-watch

O   := build/$(B)
BIN := $(if $(filter release,$(B)),bin,$(O)/bin)
Q   := $(if $(filter 1,$(V)),,@)
say  = $(if $(filter 1,$(V)),,@printf '  %-5s %s\n' $(1) $(2))

.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:

# ---- libraries -----------------------------------------------------------------------

PKGS     := libarchive jansson libisal liburing hdf5-serial zlib libpcre2-8 libzstd libutf8proc
PKGS_TEST := cmocka
PKGC     := pkg-config
# These install what is missing, then build with a make of their own that finds it.
SELF_SETUP := test check soak bench demo
NO_LIBS  := clean help deps deps-check lint tidy deb html static static-tests static-libraries check-release ready-libs \
            $(SELF_SETUP)
NEED_LIBS := $(filter-out $(NO_LIBS),$(or $(MAKECMDGOALS),all))

APT := build-essential pkg-config libarchive-dev libjansson-dev libisal-dev liburing-dev \
       libhdf5-dev zlib1g-dev libpcre2-dev libutf8proc-dev libzstd-dev libcmocka-dev openmpi-bin unzip
# What tests are skipped without: a Slurm of several nodes with accounting, a remote, fuzzers, a browser for pages.
APT_CHECK := slurm-wlm slurmdbd munge mariadb-server iproute2 util-linux procps rclone clang libclang-rt-dev libomp-dev \
       zsh git jq zstd btrfs-progs chromium pandoc libpmix-dev

# ---- flags ---------------------------------------------------------------------------

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror
CPPFLAGS_ALL := -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DSHARDKIT_VERSION='"$(VERSION)"' $(CPPFLAGS)
# -g1: functions and lines for backtraces, but no variables, which take a tenth of the time; B=debug has them.
CFLAGS_release := -O2 -g1
CFLAGS_debug   := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -g -fsanitize=thread
# What `make demo` builds: only the kernels are optimised, for this machine.
CFLAGS_demo    := -O0 -w -DKERNELS_ONE_ISA
ifeq ($(filter $(B),release debug tsan demo),)
$(error B=$(B): expected release, debug or tsan)
endif
# gcc fuses a * b + c, which rounds once, on a processor that can: a learning rate or an average would depend on the
# machine. The baseline of x86-64 cannot.
UNFUSED     := $(if $(filter-out x86_64,$(or $(ARCH),$(shell uname -m)))$(filter -m%,$(CFLAGS)),-ffp-contract=off)
CFLAGS_ALL  := -std=gnu11 $(CFLAGS_$(B)) -fopenmp $(WARN) $(filter-out -DUTF8PROC_EXPORTS,$(shell $(PKGC) --cflags $(PKGS) 2>/dev/null)) \
               $(CFLAGS)$(if $(UNFUSED), $(UNFUSED))
LDFLAGS_ALL := $(CFLAGS_$(B)) -fopenmp $(LDFLAGS)
LIBS        := $(shell $(PKGC) --libs $(PKGS) 2>/dev/null) -lm -lpthread -ldl

# ---- what there is -------------------------------------------------------------------

LIB_SRC   := $(wildcard libcommon/*/*.c libcommon/*/*/*.c libcommon/*/*/*/*.c)
LIB_OBJ   := $(LIB_SRC:%.c=$(O)/%.o)
LIB       := $(O)/libshardkit.a
# The library for other programs; its number is SHARDKIT_ABI of include/shardkit.h. Both libraries have the same objects:
# with calls bound within them, -fPIC costs programs nothing. LIBS_SO replaces the libraries that the .so is linked with.
PIC       := -fPIC -fno-semantic-interposition
LIB_ABI   := 1
LIB_SO    := $(O)/libshardkit.so.$(LIB_ABI)
LIB_MAP   := libcommon/api/libshardkit.map
LIBS_SO   ?= $(LIBS)
# Most of the CPU's kernels are compiled once per instruction set; kernels/cpu/cpu_open.c picks one set at run time.
KERNEL_ONCE := $(wildcard kernels/*.c) kernels/cpu/cpu_open.c kernels/cpu/threads.c kernels/cpu/cpu_device.c \
               kernels/cpu/amx.c
KERNEL_EACH := $(filter-out $(KERNEL_ONCE),$(wildcard kernels/cpu/*.c))
ISA_LIST    := base $(if $(filter demo,$(B)),,$(if $(filter x86_64,$(shell uname -m)),avx2 avx512 avx512bf16))
ISA_base       := $(if $(filter demo,$(B)),-O2 -march=native)
ISA_avx2       := -march=x86-64-v3
ISA_avx512     := -march=x86-64-v4 -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
# The files that use instructions of avx512bf16. All others have the same code in the set avx512, so their objects are
# copies of it whose names are changed.
KERNEL_BF16 := $(shell grep -lE 'PANEL_PAIRS|AVX512BF16' $(KERNEL_EACH))
KERNEL_COPY := $(if $(filter avx512bf16,$(ISA_LIST)),$(filter-out $(KERNEL_BF16),$(KERNEL_EACH)))
OBJCOPY ?= objcopy
KERNEL_OBJ := $(KERNEL_ONCE:%.c=$(O)/%.o) $(foreach i,$(ISA_LIST),$(KERNEL_EACH:%.c=$(O)/%.$(i).o))
# Whether an element lies in a vector loop's body or tail must not change its bits: no contraction.
# A loop that clang leaves as it is, is slower, not wrong.
KERNEL_CFLAGS := $(if $(filter release,$(B)),-O3) -ffp-contract=off -fno-math-errno -fno-trapping-math \
                 -Wno-pass-failed
KERNELS   := $(O)/libkernels.a
# What the converters' command lines share.
CONVERTERS := ckpt-edit ds2universal reshape merge-tp export-hf
SHARED    := $(O)/libshared.a
# The GPU's kernels: a library that train loads when it finds a GPU, built where there is an nvcc.
NVCC      := $(if $(filter 1,$(CUDA)),$(if $(filter release,$(B)),$(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc))))
CUDA_OBJ  := $(patsubst %.cu,$(O)/%.o,$(wildcard kernels/cuda/*.cu))
CUDA_LIB  := $(if $(NVCC),$(BIN)/shardkit-cuda.so)
# The trainer without its main(), for unit tests.
TRAIN_SRC := $(filter-out tools/train/main.c,$(wildcard tools/train/*.c tools/train/*/*.c))
TRAIN_OBJ := $(TRAIN_SRC:%.c=$(O)/%.o)
TRAIN     := $(O)/libtrain.a
# The same of the tool for backups.
BACKUP_SRC := $(filter-out tools/ckpt-backup/main.c,$(wildcard tools/ckpt-backup/*.c tools/ckpt-backup/*/*.c))
BACKUP    := $(O)/libbackup.a
# The same of run-watch.
RUNWATCH_SRC := $(filter-out tools/run-watch/main.c,$(wildcard tools/run-watch/*.c tools/run-watch/*/*.c))
RUNWATCH  := $(O)/librunwatch.a
# The same of ckpt-inspect.
INSPECT_SRC := $(filter-out tools/ckpt-inspect/main.c,$(wildcard tools/ckpt-inspect/*.c))
INSPECT   := $(O)/libinspect.a
UNIT_SRC  := $(wildcard tests/unit/*/test_*.c)
UNIT_BIN  := $(addprefix $(O)/tests/,$(basename $(notdir $(UNIT_SRC))))
# Helpers shared by test programs; each test_*.c, bench tool and fuzzer has its own main().
TLIB_SRC  := $(if $(filter demo,$(B)),$(wildcard tests/lib/ckptgen*.c) tests/lib/torch_zip.c,$(wildcard tests/lib/*.c tests/lib/*/*.c))
TLIB_OBJ  := $(TLIB_SRC:%.c=$(O)/%.o)
TLIB      := $(O)/libtests.a
BENCH_SRC := $(filter-out tests/tools/kernel_times.c,$(wildcard tests/bench/*.c tests/bench/text/*.c tests/tools/*.c))
BENCH_BIN := $(BENCH_SRC:%.c=$(O)/%)
# Measuring on a GPU: built where there is an nvcc, and CUPTI.
CUPTI     := $(if $(NVCC),$(firstword $(wildcard $(CUDA_HOME)/extras/CUPTI/include/cupti.h $(CUDA_HOME)/include/cupti.h)))
CUDA_TEST := $(if $(NVCC),$(O)/tests/bench/bench_attention $(O)/tests/tools/lt_alone) $(if $(CUPTI),$(O)/tests/tools/libkernel_times.so)
FUZZ_SRC  := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN  := $(FUZZ_SRC:tests/fuzz/%.c=build/fuzz/%)
FUZZ_OBJ  := $(patsubst %.c,build/fuzz/%.o,$(filter-out libcommon/comm/%,$(LIB_SRC)))
FUZZ_LIB  := build/fuzz/libshardkit.a
FUZZ_CFLAGS := -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -fopenmp $(shell $(PKGC) --cflags $(PKGS) 2>/dev/null)
TOOL_BIN  := $(TOOLS:%=$(BIN)/%)
MAN       := $(wildcard docs/*.1)
# What bash, zsh and fish complete behind a tool's name, printed by the tool from its table of options.
BASH_DIR   = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSH_DIR    = $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISH_DIR   = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
# What scripts use, and the documents that man pages name.
SHARE_DIR  = $(DESTDIR)$(PREFIX)/share/shardkit
DOC_DIR    = $(DESTDIR)$(PREFIX)/share/doc/shardkit

all: $(TOOL_BIN) $(CUDA_LIB)

# ---- rules ---------------------------------------------------------------------------

# Some hundred programs of tests: gold takes a quarter of the time that ld does.
TEST_LD   := $(if $(shell command -v ld.gold),-fuse-ld=gold)

FLAGS_NOW := $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(PIC) $(LDFLAGS_ALL) $(LIBS)
$(O)/flags: FORCE | check-libs
	@mkdir -p $(@D); echo '$(subst ','\'',$(FLAGS_NOW))' | cmp -s - $@ || \
		echo '$(subst ','\'',$(FLAGS_NOW))' > $@

$(O)/%.o: %.c $(O)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(if $(filter libcommon/%,$<),$(PIC)) -MMD -MP -c -o $@ $<

$(O)/commit: FORCE
	@mkdir -p $(@D); echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' >$@
$(O)/libcommon/cli/cli_options.o: CPPFLAGS_ALL += $(if $(COMMIT),-DSHARDKIT_COMMIT='"$(COMMIT)"')
$(O)/libcommon/cli/cli_options.o: $(O)/commit

define isa_rule
$(O)/kernels/cpu/%.$(1).o: kernels/cpu/%.c $(O)/flags
	$$(call say,CC,$$<:$(1))
	@mkdir -p $$(@D)
	$(Q)$$(CC) $$(CPPFLAGS_ALL) $$(CFLAGS_ALL) $(KERNEL_CFLAGS) $(ISA_$(1)) -DISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISA_LIST),$(eval $(call isa_rule,$(i))))
$(KERNEL_COPY:%.c=$(O)/%.avx512bf16.o): %.avx512bf16.o: %.avx512.o
	$(call say,COPY,$@)
	$(Q)nm -g $< | sed -n 's/^.* \([A-Za-z0-9_]*\)_avx512$$/\1_avx512 \1_avx512bf16/p' >$@.names
	$(Q)$(OBJCOPY) --redefine-syms=$@.names $< $@

# The code of the kernels does not depend on -O, which is for the host's code. A file of CUDA_HOST has no kernels.
CUDA_HOST  := $(patsubst %,$(O)/kernels/cuda/%.o,device gemm_lt nccl open)
NVCC_FLAGS  = -O1 $(CUDA_ARCH)
$(CUDA_HOST): NVCC_FLAGS = -O2 -x c++
$(O)/kernels/cuda/%.o: kernels/cuda/%.cu $(O)/flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -I. -std=c++17 $(NVCC_FLAGS) -Xcompiler -fPIC,-Wall -MMD -MP -c -o $@ $<

# What it needs of libcommon/base it finds in the program that loads it. nvcc takes no -Wl,-z,now: it cuts at commas.
comma := ,
NVCC_LDFLAGS = $(addprefix -Xlinker ,$(subst $(comma), ,$(patsubst -Wl$(comma)%,%,$(filter -Wl$(comma)%,$(LDFLAGS)))) \
               $(if $(CUDA_RPATH),-rpath=$(CUDA_RPATH)))
$(BIN)/shardkit-cuda.so: $(CUDA_OBJ)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -shared -cudart static -o $@ $^ -L$(CUDA_HOME)/lib64 $(NVCC_LDFLAGS) -lcublasLt

$(LIB): $(LIB_OBJ) $(O)/libcommon/model/family_builtin.o
$(TLIB): $(TLIB_OBJ)
$(KERNELS): $(KERNEL_OBJ)
$(TRAIN): $(TRAIN_OBJ)
$(BACKUP): $(BACKUP_SRC:%.c=$(O)/%.o)
$(RUNWATCH): $(RUNWATCH_SRC:%.c=$(O)/%.o) $(O)/tools/run-watch/picture/page_files.o
$(INSPECT): $(INSPECT_SRC:%.c=$(O)/%.o)
$(SHARED): $(patsubst %.c,$(O)/%.o,$(wildcard tools/common/*.c))
$(LIB) $(TLIB) $(KERNELS) $(TRAIN) $(BACKUP) $(RUNWATCH) $(INSPECT) $(SHARED) $(FUZZ_LIB):
	$(call say,AR,$@)
	$(Q)rm -f $@; $(AR) rcs $@ $^

lib: $(LIB_SO)
$(LIB_SO): $(O)/libcommon/api/api.o $(LIB) $(LIB_MAP)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,$(@F) -Wl,--version-script=$(LIB_MAP) -Wl,-z,defs -Wl,--as-needed \
		-o $@ $< $(LIB) $(LIBS_SO)
	$(Q)ln -sf $(@F) $(O)/libshardkit.so

# What run-watch report puts into its pages, as C: numbers of bytes, so that nothing has to be quoted.
PAGE_DIR := tools/run-watch/picture
PAGE_JS  := $(addprefix $(PAGE_DIR)/page_,base.js chart.js rows.js build.js)
$(O)/$(PAGE_DIR)/page_files.c: $(PAGE_DIR)/page.css $(PAGE_JS)
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)exec >$@; echo '#include "tools/run-watch/picture/page_impl.h"'; \
	bytes() { od -An -v -tu1 | sed 's/[0-9][0-9]*/&,/g'; }; \
	echo 'const char page_css[] = {'; cat $(PAGE_DIR)/page.css | bytes; echo '0 };'; \
	echo 'const char page_js[] = {'; cat $(PAGE_JS) | bytes; echo '0 };'

$(O)/$(PAGE_DIR)/page_files.o: $(O)/$(PAGE_DIR)/page_files.c $(O)/flags
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -c -o $@ $<

$(BIN)/run-watch: $(O)/$(PAGE_DIR)/page_files.o

# The families of models that are known without a file, as C; what is installed beside them are the same texts.
# Families in the order in which names are looked up: other families share names with the first ones.
RULES    := $(patsubst %,rules/%.rules,bloom gpt2 gpt_neox llama)
RULES    += $(filter-out $(RULES),$(sort $(wildcard rules/*.rules)))
MODELS   := rules/transformers.models
$(O)/libcommon/model/family_builtin.c: $(RULES) $(MODELS) Makefile
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)exec >$@; echo '#include "libcommon/model/family_builtin.h"'; echo 'const struct family_builtin family_builtin_file[] = {'; \
	for f in $(RULES); do \
		echo "{ \"$$(basename $$f .rules)\","; sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' $$f; echo '},'; \
	done; echo '{ 0, 0 } };'; \
	echo 'const char model_tensors_text[] ='; sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' $(MODELS); echo ';'

$(O)/libcommon/model/family_builtin.o: $(O)/libcommon/model/family_builtin.c $(O)/flags
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(PIC) -c -o $@ $<

define tool_rule
$(BIN)/$(1): $(patsubst %.c,$(O)/%.o,$(wildcard tools/$(1)/*.c tools/$(1)/*/*.c)) $(LIB)
	$$(call say,LD,$$@)
	@mkdir -p $$(@D)
	$(Q)$$(CC) $$(LDFLAGS_ALL) -o $$@ $$(filter %.o,$$^) $(2) $(LIB) $$(LIBS) $(3)
endef
$(foreach t,$(CONVERTERS),$(eval $(call tool_rule,$(t),$(SHARED))))
$(CONVERTERS:%=$(BIN)/%): $(SHARED)
$(foreach t,$(filter-out train $(CONVERTERS),$(TOOLS)),$(eval $(call tool_rule,$(t))))
# -rdynamic, here and for programs of tests: shardkit-cuda.so finds the errors' functions in the program.
$(eval $(call tool_rule,train,$(KERNELS),-rdynamic))
$(BIN)/train: $(KERNELS)

define unit_rule
$(O)/tests/$(basename $(notdir $(1))): $(1:%.c=$(O)/%.o)
endef
$(foreach s,$(UNIT_SRC),$(eval $(call unit_rule,$(s))))
$(UNIT_BIN): $(TLIB) $(TRAIN) $(BACKUP) $(RUNWATCH) $(INSPECT) $(KERNELS) $(LIB)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) $(TEST_LD) -o $@ $(filter %.o,$^) $(TLIB) $(TRAIN) $(BACKUP) $(RUNWATCH) $(INSPECT) $(KERNELS) $(LIB) $(LIBS) -lcmocka -rdynamic

$(BENCH_BIN): $(O)/%: $(O)/%.o $(TLIB) $(KERNELS) $(LIB)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) $(TEST_LD) -Wl,--as-needed -o $@ $(filter %.o,$^) $(TLIB) $(KERNELS) $(LIB) $(LIBS) -rdynamic

$(O)/tests/bench/bench_attention: tests/bench/bench_attention.cu $(CUDA_OBJ) $(LIB)
	$(call say,NVCC,$@)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -I. -std=c++17 -O3 $(CUDA_ARCH) -cudart static -o $@ $^ -L$(CUDA_HOME)/lib64 \
		-Xlinker -rpath=$(CUDA_HOME)/lib64 -lcublasLt -lpthread

$(O)/tests/tools/lt_alone: tests/tools/lt_alone.cu
	$(call say,NVCC,$@)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O2 $(CUDA_ARCH) -cudart static -o $@ $< -L$(CUDA_HOME)/lib64 \
		-Xlinker -rpath=$(CUDA_HOME)/lib64 -lcublasLt

$(O)/tests/tools/libkernel_times.so: tests/tools/kernel_times.c
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -O2 -g $(WARN) -fPIC -shared -I$(dir $(CUPTI)) -I$(CUDA_HOME)/include -o $@ $< \
		-L$(CUDA_HOME)/extras/CUPTI/lib64 -L$(CUDA_HOME)/lib64 -lcupti -lstdc++ -lpthread

# Fuzzers are clang's; they have a library of their own, compiled once with coverage instrumentation.
build/fuzz/%.o: %.c $(O)/flags
	$(call say,FUZZ,$<)
	@mkdir -p $(@D)
	$(Q)clang $(CPPFLAGS_ALL) $(FUZZ_CFLAGS) -MMD -MP -c -o $@ $<

build/fuzz/libcommon/model/family_builtin.o: $(O)/libcommon/model/family_builtin.c
	$(call say,FUZZ,$<)
	@mkdir -p $(@D)
	$(Q)clang $(CPPFLAGS_ALL) $(FUZZ_CFLAGS) -c -o $@ $<

$(FUZZ_LIB): $(FUZZ_OBJ) build/fuzz/libcommon/model/family_builtin.o

$(FUZZ_BIN): build/fuzz/%: build/fuzz/tests/fuzz/%.o $(FUZZ_LIB)
	$(call say,LD,$@)
	$(Q)clang $(FUZZ_CFLAGS) -o $@ $^ $(LIBS)

$(NEED_LIBS): | check-libs
check-libs:
	@missing=; for p in $(PKGS); do $(PKGC) --exists $$p 2>/dev/null || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "missing libraries:$$missing; run 'make deps'" >&2; exit 1; fi

deps:
	@sh tests/deps.sh $(APT)
deps-check:
	@sh tests/deps.sh -e $(APT_CHECK)

bench-bin: $(BENCH_BIN)
tests-bin: $(UNIT_BIN) bench-bin $(CUDA_TEST)

ready-libs:
	@{ $(PKGC) --exists $(PKGS) $(PKGS_TEST) && command -v unzip; } >/dev/null 2>&1 || $(MAKE) --no-print-directory deps

test: ready-libs
	$(Q)bash tests/run.sh '$(T)'

check: ready-libs
	$(Q)bash tests/run.sh check '$(T)'

soak: ready-libs
	$(Q)sh tests/soak.sh

bench: ready-libs
	$(Q)$(MAKE) --no-print-directory all tests-bin
	$(Q)sh tests/bench/run.sh

# Only what the demo runs, in a quick build of its own, unless the tools are built and newer than their sources.
DEMO_NEEDS := $(addprefix build/demo/bin/,shardkit preprocess train ckpt-inspect ds2universal reshape merge-tp export-hf run-watch) \
              build/demo/tests/bench/mkckpt
demo: ready-libs
	$(Q)if [ -x build/release/tests/bench/mkckpt ] && [ -x bin/train ] && \
		[ -z "$$(find libcommon kernels tools tests/bench tests/lib -name '*.[ch]' -newer bin/train)" ]; then sh tests/demo.sh; \
	else \
		echo "Compiling what the demo runs into build/demo, without CUDA; only the kernels are optimised"; \
		$(MAKE) --no-print-directory -s -j"$$(nproc)" B=demo CUDA=0 $(DEMO_NEEDS) && \
		BIN=$(CURDIR)/build/demo/bin TBIN=$(CURDIR)/build/demo/tests sh tests/demo.sh; \
	fi

fuzz: $(FUZZ_BIN)

lint:
	$(Q)sh tests/lint.sh

tidy:
	$(Q)sh tests/tidy.sh

install: all lib
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1
	$(Q)install -m 755 $(TOOL_BIN) $(DESTDIR)$(PREFIX)/bin
	$(Q)if [ -n "$(CUDA_LIB)" ]; then install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/shardkit $(CUDA_LIB); fi
	$(Q)install -m 644 $(MAN) $(DESTDIR)$(PREFIX)/share/man/man1
	$(Q)install -D -m 644 -t $(DESTDIR)$(PREFIX)/include include/shardkit.h
	$(Q)install -D -m 644 -t $(DESTDIR)$(LIBDIR) $(LIB_SO) && ln -sf $(notdir $(LIB_SO)) $(DESTDIR)$(LIBDIR)/libshardkit.so
	$(Q)install -d $(DESTDIR)$(LIBDIR)/pkgconfig && printf '%s\n' 'Name: shardkit' \
		'Description: reads and verifies checkpoints of large language models' 'Version: $(VERSION)' \
		'Cflags: -I$(PREFIX)/include' 'Libs: -L$(LIBDIR) -lshardkit' >$(DESTDIR)$(LIBDIR)/pkgconfig/shardkit.pc
	$(Q)install -d $(SHARE_DIR) && cp -R ops rules examples $(SHARE_DIR)
	$(Q)install -d $(DOC_DIR) && install -m 644 README.md CHANGELOG.md $(wildcard docs/*.md docs/*.svg) $(DOC_DIR)
	$(Q)install -d $(BASH_DIR) $(ZSH_DIR) $(FISH_DIR)
	$(Q)set -e; for t in $(TOOLS); do \
		$(BIN)/$$t --completion bash >$(BASH_DIR)/$$t; $(BIN)/$$t --completion zsh >$(ZSH_DIR)/_$$t; \
		$(BIN)/$$t --completion fish >$(FISH_DIR)/$$t.fish; \
	done

# The OPTIONS of the pages anew, from the tools' tables.
man: $(TOOL_BIN)
	$(Q)set -e; for t in $(filter-out shardkit,$(TOOLS)); do $(BIN)/$$t --completion man | awk -f docs/options.awk - docs/$$t.1 >docs/$$t.new; \
		mv docs/$$t.new docs/$$t.1; done

# The documents and man pages as static pages, with a search that needs no network.
html:
	$(Q)sh docs/site/build.sh build/html

deb:
	$(Q)sh ops/packaging/deb.sh

uninstall:
	$(Q)rm -f $(DESTDIR)$(PREFIX)/include/shardkit.h $(DESTDIR)$(LIBDIR)/libshardkit.so* $(DESTDIR)$(LIBDIR)/pkgconfig/shardkit.pc
	$(Q)rm -rf "$(DESTDIR)$(PREFIX)/lib/shardkit" "$(SHARE_DIR)" "$(DOC_DIR)"
	$(Q)rm -f $(TOOLS:%=$(DESTDIR)$(PREFIX)/bin/%) $(MAN:docs/%=$(DESTDIR)$(PREFIX)/share/man/man1/%)
	$(Q)rm -f $(TOOLS:%=$(BASH_DIR)/%) $(TOOLS:%=$(ZSH_DIR)/_%) $(TOOLS:%=$(FISH_DIR)/%.fish)

clean:
	$(Q)rm -rf build bin

help:
	@sed -n '1,/^$$/p' Makefile


include ops/packaging/static.mk

.PHONY: all lib deps deps-check ready-libs test check tests-bin bench-bin soak bench demo fuzz lint tidy install man deb uninstall clean help check-libs FORCE
.SECONDARY:

-include $(LIB_OBJ:.o=.d) $(TLIB_OBJ:.o=.d) $(FUZZ_OBJ:.o=.d) $(FUZZ_SRC:%.c=build/fuzz/%.d) $(KERNEL_OBJ:.o=.d) $(CUDA_OBJ:.o=.d) $(patsubst %.c,$(O)/%.d,$(wildcard tools/*/*.c tools/*/*/*.c) $(UNIT_SRC) $(BENCH_SRC))
