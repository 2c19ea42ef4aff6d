# static.mk - programs for any Linux, for `make static`; the Makefile includes this file
#
#   make static [ARCH=x86_64|aarch64]   build/static-$(ARCH)/bin: one static program, shardkit, and a link per tool; train,
#                                       which loads MPI and CUDA at run time and so needs a glibc, 2.28 or newer
#   make static-tests ARCH=aarch64      the unit tests of that architecture, static too
#   make release [ARCHES=...] [DEB=0]   dist/: tarballs, wheels, packages, bills of materials, SHA256SUMS
#   make check-release                  tests/release/*.sh: what the two above made
# ops/packaging/static/libraries.sh builds the libraries first. The same rules compile the tree once more, with
# STATIC=$(ARCH), into build/static-$(ARCH).

ARCH         ?= $(shell uname -m)
STATIC_DIR   := build/static-$(ARCH)
STATIC_HOST  := $(ARCH)-linux-gnu
STATIC_TOOLS := $(filter-out train,$(TOOLS))
STATIC_SYS   := $(CURDIR)/$(STATIC_DIR)/sysroot/usr
STATIC_PRE   := $(CURDIR)/$(STATIC_DIR)/prefix
# HDF5 has no pkg-config file of its own.
STATIC_LIBS  := -L$(STATIC_PRE)/lib -L$(STATIC_SYS)/lib/$(STATIC_HOST) -larchive -lhdf5 -lsz -laec -ljansson -lisal -luring \
                -lpcre2-8 -lutf8proc -llz4 -lzstd -llzma -lbz2 -lz -lm -lpthread
STATIC_CPU_x86_64 := -march=x86-64-v2
STATIC_CFLAGS = $(STATIC_CPU_$(ARCH)) -ffunction-sections -fdata-sections -ffile-prefix-map=$(CURDIR)=. \
                -isystem $(STATIC_PRE)/include -isystem $(STATIC_SYS)/include -isystem $(STATIC_SYS)/include/$(STATIC_HOST)
STATIC_MAKE   = +$(MAKE) --no-print-directory STATIC=$(ARCH) ARCH=$(ARCH) B=release O=$(STATIC_DIR)/obj COMMIT='$(COMMIT)' CUDA=0 PKGS= \
                CC='$(if $(findstring ccache,$(CC)),ccache )$(STATIC_HOST)-gcc' AR=$(STATIC_HOST)-ar OBJCOPY=$(STATIC_HOST)-objcopy \
                CFLAGS='$(STATIC_CFLAGS)' \
                LDFLAGS='-static -Wl,--gc-sections -Wl,--build-id=none ' LIBS='$(STATIC_LIBS)' \
                ISA_LIST='base$(if $(filter x86_64,$(ARCH)), avx2 avx512 avx512bf16)'

# train, and libshardkit.so of a wheel: every library inside but those of glibc and, next to the .so, OpenMP's. They need
# glibc 2.28, not the one of this machine: glibc_floor.c directs these names to old versions, lower_glibc.py does so in libgomp.
FLOOR_NAMES   := dlopen dlsym dlclose dlerror exp exp2 log pow pthread_attr_getstacksize pthread_attr_setaffinity_np \
                 pthread_attr_setstacksize pthread_create pthread_detach pthread_getaffinity_np pthread_getspecific \
                 pthread_join pthread_key_create pthread_key_delete pthread_mutex_clocklock \
                 pthread_mutex_timedlock pthread_once pthread_setaffinity_np pthread_setspecific pthread_sigmask stat lstat fstat stat64 lstat64 fstat64 \
                 stdin stdout stderr gettid sigabbrev_np strerrordesc_np __libc_start_main
FLOOR_LINK    := -Wl,--as-needed -Wl,--gc-sections -Wl,--build-id=none -s $(addprefix -Wl$(comma)--wrap=,$(FLOOR_NAMES))
FLOOR_LIBS     = $(filter -L%,$(STATIC_LIBS)) -Wl,-Bstatic $(filter-out -L% -lm -lpthread,$(STATIC_LIBS))
FLOOR_GLIBC   := -Wl,-Bdynamic -lm -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed

static: static-libraries
	$(STATIC_MAKE) $(STATIC_DIR)/bin/shardkit
	$(Q)for t in $(filter-out shardkit,$(STATIC_TOOLS)); do ln -sf shardkit $(STATIC_DIR)/bin/$$t; done
	$(STATIC_MAKE) $(STATIC_DIR)/lib/libshardkit.so.$(LIB_ABI) $(STATIC_DIR)/bin/train

static-tests:
	$(Q)sh ops/packaging/static/libraries.sh $(ARCH) cmocka
	$(STATIC_MAKE) TEST_LD= static-unit

static-libraries:
	$(Q)sh ops/packaging/static/libraries.sh $(ARCH)

static-unit: $(UNIT_BIN)

ARCHES ?= x86_64 $(if $(shell command -v aarch64-linux-gnu-gcc),aarch64)
release: all
	$(Q)set -e; commit=$(or $(COMMIT),$$(git rev-parse --short=12 HEAD)); for a in $(ARCHES); do \
		$(MAKE) --no-print-directory static ARCH=$$a COMMIT=$$commit; \
	done; COMMIT=$$commit DEB=$(or $(DEB),1) sh ops/packaging/release.sh $(ARCHES)

check-release:
	$(Q)rc=0; for f in tests/release/*.sh; do echo "== $$f"; sh $$f || rc=1; done; exit $$rc

ifdef STATIC
# Each tool's main() becomes TOOL_main(), which the program's own main() calls by the name under which it is started.
STATIC_MAIN := $(STATIC_TOOLS:%=$(O)/tools/%/main.o)
$(STATIC_MAIN): CFLAGS_ALL += -Dmain=$(subst -,_,$(notdir $(@D)))_main -Wno-missing-prototypes
$(O)/multicall_tools.h: ops/packaging/static.mk
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)exec >$@; for t in $(STATIC_TOOLS); do echo "MULTICALL_TOOL(\"$$t\", $$(echo $$t | tr - _)_main)"; done

$(STATIC_DIR)/bin/shardkit: ops/packaging/static/multicall.c $(O)/multicall_tools.h ops/packaging/static/libc.c \
    $(patsubst %.c,$(O)/%.o,$(wildcard $(foreach t,$(STATIC_TOOLS),tools/$(t)/*.c tools/$(t)/*/*.c))) \
    $(O)/$(PAGE_DIR)/page_files.o $(SHARED) $(LIB)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -I$(O) $(LDFLAGS_ALL) \
		$(addprefix -Wl$(comma)--wrap=,tool_exec dlopen getpwuid) -o $@ $(filter ops/%.c,$^) $(filter %.o,$^) $(SHARED) $(LIB) $(LIBS)
	$(Q)$(STATIC_HOST)-strip $@

$(STATIC_DIR)/lib/libshardkit.so.$(LIB_ABI): $(O)/libcommon/api/api.o ops/packaging/static/glibc_floor.c $(LIB) $(LIB_MAP)
	$(call say,LD,$@)
	$(Q)rm -rf $(@D) && mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(PIC) -shared -Wl,-soname,$(@F) -Wl,--version-script=$(LIB_MAP) -Wl,-z,defs \
		-Wl,--exclude-libs,ALL '-Wl,-rpath,$$ORIGIN' $(FLOOR_LINK) -o $@ $(filter %.o %.c,$^) $(LIB) $(FLOOR_LIBS) $(FLOOR_GLIBC)
	$(Q)python3 ops/packaging/static/lower_glibc.py "$$($(CC) -print-file-name=libgomp.so.1)" $(@D)/libgomp.so.1 28

# -rdynamic: shardkit-cuda.so finds the errors' functions in the program.
$(STATIC_DIR)/bin/train: ops/packaging/static/glibc_floor.c $(patsubst %.c,$(O)/%.o,$(wildcard tools/train/*.c tools/train/*/*.c)) \
    $(KERNELS) $(LIB)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -DFLOOR_PROGRAM -rdynamic $(FLOOR_LINK) -o $@ $(filter %.o %.c,$^) $(KERNELS) $(LIB) $(FLOOR_LIBS) \
		-lgomp $(FLOOR_GLIBC)
endif

.PHONY: static static-tests static-libraries static-unit release check-release
