# Two commands for a fresh Debian or Ubuntu machine: `make demo` and `make test`. Everything else is Meson and Ninja.
BUILD ?= build

.PHONY: all demo test portable dist deps clean

all: $(BUILD)/build.ninja
	ninja -C $(BUILD)

# Builds what a chat needs, then chats with the bundled model. Where standard input is no terminal, so that nobody could
# chat, one question is answered.
demo: $(BUILD)/build.ninja
	@ninja -C $(BUILD) src/cli/pfmoe-run
	@if [ -t 0 ]; then $(BUILD)/src/cli/pfmoe-run; else $(BUILD)/src/cli/pfmoe-run -p "Tell me a fable about a fox." </dev/null; fi

# Builds, then runs every test. Ends with "N passed, N failed, N skipped".
test: all
	python3 tests/run.py $(BUILD)

# Programs for another distribution of the same age or newer: every library but libc and libmicrohttpd linked statically.
portable: deps
	@[ -f build-portable/build.ninja ] || meson setup build-portable -Dportable=true --prefix /usr -Dpkgconfig.relocatable=true -Dgpu_arch=all
	ninja -C build-portable product

# dist/: a tarball that runs where it is unpacked, and a Debian package for this release.
dist: portable
	@[ -f build-deb/build.ninja ] || meson setup build-deb --prefix /usr -Dgpu_arch=all
	ninja -C build-deb product
	@sh tools/dist.sh build-portable build-deb dist

# What Meson finds is in its log; a failure is shown.
$(BUILD)/build.ninja: meson.build | deps
	@echo "setting up $(BUILD)/"
	@meson setup $(BUILD) > $(BUILD)-setup.log 2>&1 || { cat $(BUILD)-setup.log; exit 1; }
	@mv $(BUILD)-setup.log $(BUILD)/setup.log

# Installs the packages that are missing; says which and why if it may not.
deps:
	@sh tools/install_deps.sh

clean:
	rm -rf $(BUILD)
