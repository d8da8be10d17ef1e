#!/usr/bin/env bash
# One server with the module, and one lock taken, refused and given back by hand.
#
#   examples/one_node.sh target/release/liblockmod.so
#
# The server listens on a Unix socket in a temporary folder only, and ends with this script.
set -euo pipefail

module=$(realpath "${1:-target/release/liblockmod.so}")
folder=$(mktemp -d)
socket=$folder/redis.sock
redis-server --port 0 --unixsocket "$socket" --dir "$folder" --save "" --loadmodule "$module" \
    > "$folder/log" 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true; wait $server 2> /dev/null || true; rm -rf "$folder"' EXIT

cli() { redis-cli --no-raw -s "$socket" "$@"; }
for _ in {1..100}; do
    # A socket without a server behind it says so on standard output.
    if [ "$(cli PING 2>&1)" = PONG ]; then break; fi
    if ! kill -0 $server 2> /dev/null; then
        echo "the server did not start:" >&2
        cat "$folder/log" >&2
        exit 1
    fi
    sleep 0.1
done

# Shows a command and its reply, and fails if the reply is not the one that is promised.
show() {
    local expected=$1 reply
    shift
    reply=$(cli "$@")
    printf '$ redis-cli %s\n%s\n' "$*" "$reply"
    if [ "$reply" != "$expected" ]; then
        echo "expected: $expected" >&2
        exit 1
    fi
}

echo '# alice takes the lock for 30 seconds; the reply is her fence'
show '(integer) 1' LOCK.ACQUIRE printer alice-7f3a 30000
echo '# bob is refused'
show '(nil)' LOCK.ACQUIRE printer bob-91c2 30000
echo '# only alice can give it back'
show '(integer) 0' LOCK.RELEASE printer bob-91c2
show '(integer) 1' LOCK.RELEASE printer alice-7f3a
echo '# bob is next, and his fence is larger than hers'
show '(integer) 2' LOCK.ACQUIRE printer bob-91c2 30000
