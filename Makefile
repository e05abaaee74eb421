# agentsbx. `make demo` shows what it does, `make test` proves it, `make install` puts it on this machine.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo

# Scripts and tests look for binaries there, wherever else the caller has cargo build.
export CARGO_TARGET_DIR := $(CURDIR)/target
unexport CARGO_BUILD_TARGET

.PHONY: clean help setup demo check test soak suite test-vm bench install uninstall docs schema

help:
	@echo 'make setup      install the Debian packages that building and testing need (as root)'
	@echo 'make demo       build, and show the main things on a small root filesystem, without any engine'
	@echo 'make check      formatting, lints, shell scripts'
	@echo 'make test       every test: as root, with engines of their own'
	@echo 'make test-vm    the same runtime on Debian 12 with systemd and cgroup v2, in an emulated machine: slow'
	@echo 'make soak       the long forms of the tests: ten thousand execs, a thousand kills; about an hour'
	@echo "make suite      containerd's own tests under this shim and the stock one: 3 GB to get them, then ten minutes a time"
	@echo 'make bench      the release binary beside runc, crun and youki, taking turns; wants a quiet machine'
	@echo 'make docs       the API documentation, in target/doc'
	@echo 'make schema     write runtime-spec/*.schema.json anew from the Rust types'
	@echo 'make install    build static binaries, the runtime and its containerd shim, put them below PREFIX=$(PREFIX),'
	@echo '                make engines know them'
	@echo 'make uninstall  take all of that away again; with the PREFIX that install was given'

setup:
	@command -v $(CARGO) >/dev/null || { echo 'no cargo: install Rust 1.91 or later first (rustup does it)' >&2; exit 1; }
	@hack/deps.sh

demo:
	@hack/deps.sh build demo
	@hack/demo.sh

check:
	@hack/deps.sh build check
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	shellcheck hack/*.sh hack/*/*.sh .ci/run

# The images are made of what is downloaded, while the compiler computes.
test: setup
	@{ hack/images.sh && hack/containerds.sh target/containerd; } & images=$$!; $(CARGO) build && $(CARGO) test --no-run; built=$$?; wait $$images && exit $$built
	$(CARGO) test --lib --bins
	$(CARGO) test --lib --features schema report
	$(CARGO) test --test integration

soak: setup
	@hack/images.sh
	@hack/containerds.sh target/containerd
	$(CARGO) build
	$(CARGO) test --test integration -- --ignored --nocapture --test-threads 1 $(SOAK)

suite:
	@hack/containerd-suite.sh

test-vm:
	@hack/deps.sh build
	@hack/vm.sh

bench:
	@hack/deps.sh build bench
	@mkdir -p target/bench
	@hack/bench.sh --json target/bench/result.json $(BENCH)

docs:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps

schema:
	AGENTSBX_UPDATE_SCHEMA=1 $(CARGO) test --lib --features schema report::schema

install:
	@hack/install.sh install '$(PREFIX)' '$(DESTDIR)'

clean:
	$(CARGO) clean

uninstall:
	@hack/install.sh uninstall '$(PREFIX)' '$(DESTDIR)'
