# shellcheck shell=bash
# What the tests of several processes share.

# none_left PROCESS...: silent if none of them runs any more; after mpirun has ended they have some seconds to go. (Z:
# it has ended, and its parent is told later)
none_left() {
    local id left
    for _ in {1..50}; do
        left=
        for id; do
            if grep -s '^State:' "/proc/$id/status" | grep -qv 'Z ('; then left+=" $id"; fi
        done
        [ -n "$left" ] || return
        sleep 0.1
    done
    echo "still running:$left"
}
