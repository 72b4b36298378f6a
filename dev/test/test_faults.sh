#!/usr/bin/env bash
# The short form of dev/test/faults.sh, for `make test`. Some faults take build/test/test_processes.
exec "$(dirname "$0")/faults.sh" short
