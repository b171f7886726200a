#!/bin/sh
# Builds the peer stores of `fawn bench store` into target/peers: build.sh [NAME…]
# Debian's packages: gcc, liblmdb-dev, libdb5.3-dev, librocksdb-dev. redb and fjall need nothing but cargo.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../target/peers
mkdir -p "$out"
compile() { # NAME SOURCE… LIBRARIES
    name=$1
    shift
    ${CC:-cc} -O2 -g -std=gnu11 -Wall -Wextra -o "$out/peer-$name" "$here/c/driver.c" "$@" -lm -lpthread
    echo "built target/peers/peer-$name"
}
for name in ${*:-lmdb bdb rocksdb redb fjall}; do
    case $name in
    lmdb) compile lmdb "$here/c/lmdb.c" -llmdb ;;
    bdb) compile bdb "$here/c/bdb.c" -ldb-5.3 ;;
    rocksdb) compile rocksdb "$here/c/rocksdb.c" -lrocksdb ;;
    redb | fjall)
        cargo build --release --manifest-path "$here/rust/Cargo.toml" --features "$name" --target-dir "$out/build-$name"
        compile "$name" "$out/build-$name/release/libpeer_store.a" -ldl
        ;;
    *)
        echo "no peer $name; expected lmdb, bdb, rocksdb, redb or fjall" >&2
        exit 1
        ;;
    esac
done
