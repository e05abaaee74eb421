#!/bin/sh
# Builds the release binaries, linked statically, and prints the runtime's path; containerd's shim is beside it.
set -eu
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
LIBSECCOMP_LIB_PATH=$(pkg-config --variable=libdir libseccomp)
export LIBSECCOMP_LIB_PATH LIBSECCOMP_LINK_TYPE=static RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static"
export CARGO_TARGET_DIR="$PWD/target"
cargo build --release --bins --target "$host" >&2
echo "$PWD/target/$host/release/agentsbx"
