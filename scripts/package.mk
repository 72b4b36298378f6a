# How the program is installed and packaged. The Makefile includes this file.
#   PREFIX=/usr/local  DESTDIR=  BASELINE=x86-64-v3

PREFIX ?= /usr/local
install_with = PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh

# Nothing is compiled if the program is there. So `sudo make install` keeps the flags and the owner of the build.
install: ## install: ./train_gpt2, man page, completion, scripts and documents into PREFIX=/usr/local
	@[ -x train_gpt2 ] || $(MAKE) --no-print-directory train_gpt2
	@$(install_with) install

uninstall: ## install: remove what `make install` put into PREFIX
	@$(install_with) uninstall

# A package is for CPUs with AVX2 and FMA (Haswell 2013, Zen 2017); an older CPU stops with "Illegal instruction" and
# needs BASELINE=x86-64.
BASELINE ?= $(if $(filter x86_64,$(shell uname -m)),x86-64-v3,armv8-a)
build/package/train_gpt2: MARCH = $(BASELINE)
build/package/train_gpt2: comm = yes
build/package/train_gpt2: options = -D_FORTIFY_SOURCE=2 -Wl,-z,relro,-z,now
build/package/train_gpt2: train_gpt2.cu build/flags
	$(compile)

deb: build/package/train_gpt2 ## install: a Debian package of a CPU build, in build/package
	@scripts/deb.sh build/package/train_gpt2 build/package

.PHONY: install uninstall deb
