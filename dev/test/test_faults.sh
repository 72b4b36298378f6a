#!/usr/bin/env bash
# The short form of dev/test/faults.sh, for `make test`. Some faults take build/test/test_processes.
#   TRAINER=./train_gpt2 dev/test/test_faults.sh
exec "$(dirname "$0")/faults.sh" short
