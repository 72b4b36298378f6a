# How the program is installed. The Makefile includes this file.
#   PREFIX=/usr/local  DESTDIR=

PREFIX ?= /usr/local
# the environment takes any name of a folder, with quotes too
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)

# Nothing is compiled if the program is there. So `sudo make install` keeps the flags and the owner of the build.
install: ## install: ./train_gpt2, scripts and documents into PREFIX=/usr/local
	@[ -x train_gpt2 ] || $(MAKE) --no-print-directory train_gpt2
	@scripts/install.sh install

uninstall: ## install: remove what `make install` put into PREFIX
	@scripts/install.sh uninstall

.PHONY: install uninstall
