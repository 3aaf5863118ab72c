#!/usr/bin/env bash
# Installs the library for C and C++: `install.sh PREFIX` builds it, and copies the header, the
# static and the shared library and a pkg-config file into PREFIX. With a second argument, a folder,
# it copies the libraries from there instead of building them. It is for Linux.
set -euo pipefail
prefix=${1:?expected a folder to install into}
here=$(cd "$(dirname "$0")" && pwd)
libraries=${2:-}
if [ -z "$libraries" ]; then
  target=${CARGO_TARGET_DIR:-$here/../../target}
  cargo build --release --manifest-path "$here/Cargo.toml"
  libraries=$target/release
fi
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
cp "$here/include/vattention.h" "$prefix/include/"
cp "$here/vattention.pc" "$prefix/lib/pkgconfig/"
cp "$libraries/libvattention_capi.so" "$prefix/lib/"
# Selectors, samplers and estimators register themselves when a program starts. A linker takes only
# those objects of an archive that something names, so the archive gets one object with all of them.
object=$(mktemp --suffix=.o)
trap 'rm -f "$object"' EXIT
ld -r --whole-archive "$libraries/libvattention_capi.a" -o "$object"
# Bitcode of Rust's own objects: merged, it is invalid, and `ar` fails to read it.
objcopy --remove-section .llvmbc --remove-section .llvmcmd "$object"
rm -f "$prefix/lib/libvattention_capi.a"
ar rcs "$prefix/lib/libvattention_capi.a" "$object"
